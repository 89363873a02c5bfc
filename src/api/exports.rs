//! The export of a session: a file that shows its requests on a time line, with all that is known of its runs (protocol
//! §6.2). Made in the background, fetched over a link.

use std::collections::HashMap;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, UNIX_EPOCH};

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;
use chrono::Utc;
use tinderbox_client::types::sessions::{TraceExportResponse, TraceExportStatus};

use crate::error::{Error, Result};
use crate::ids::{OwnerId, SessionId};

use super::auth::Owner;
use super::content::{Content, Part};
use super::error::{ApiError, ApiResult};
use super::state::App;
use super::timeline;
use super::transfers::{LIFETIME, api_url, etag, send};

/// The name under which the file is served; what shows time lines reads it as it is.
const FILE: &str = "session.pftrace";

/// A request waits so long for the export, since most are made at once.
const PATIENCE: Duration = Duration::from_secs(2);

/// A file that young is given out again, whatever happened since: clients ask until one is ready.
const FRESH: Duration = Duration::from_secs(60);

/// A file outlives every link to it.
const KEPT: Duration = Duration::from_secs(2 * 3600);

/// The exports of this process and their files.
pub struct Exports {
    root: PathBuf,
    of_sessions: Mutex<HashMap<SessionId, Export>>,
}

/// Where one stands.
#[derive(Clone)]
enum Export {
    Running,
    Ready(Instant),
    Failed(String),
}

/// An export being made. Dropping it ends it, also when a panic does.
struct Making {
    app: App,
    session: SessionId,
    /// What it came to.
    made: Option<Result<()>>,
}

impl Drop for Making {
    fn drop(&mut self) {
        let broken = || Err(Error::server("making the export broke off; the server's log says more"));
        self.app.exports().end(self.session.clone(), self.made.take().unwrap_or_else(broken));
    }
}

impl Exports {
    /// A restart forgets all.
    pub fn new(root: PathBuf) -> Self {
        let _ = std::fs::remove_dir_all(&root);
        Self { root, of_sessions: Mutex::default() }
    }

    /// To be called every now and then.
    pub fn forget_old(&self) {
        self.lock().retain(|session, export| match export {
            Export::Ready(at) if at.elapsed() > KEPT => {
                let _ = std::fs::remove_file(self.file(session));
                false
            }
            Export::Failed(_) => false,
            _ => true,
        });
    }

    fn file(&self, session: &SessionId) -> PathBuf {
        self.root.join(format!("{session}.json"))
    }

    /// True when nobody makes this export, and the caller must.
    fn begin(&self, session: &SessionId) -> bool {
        let mut exports = self.lock();
        match exports.get(session) {
            Some(Export::Running) => false,
            Some(Export::Ready(at)) if at.elapsed() < FRESH => false,
            _ => {
                exports.insert(session.clone(), Export::Running);
                true
            }
        }
    }

    fn end(&self, session: SessionId, result: Result<()>) {
        let export = match result {
            Ok(()) => Export::Ready(Instant::now()),
            Err(e) => Export::Failed(e.message),
        };
        self.lock().insert(session, export);
    }

    /// Where it stands. A failure is told once; the next request tries again.
    fn look(&self, session: &SessionId) -> Option<Export> {
        let mut exports = self.lock();
        let export = exports.get(session).cloned();
        if matches!(export, Some(Export::Failed(_))) {
            exports.remove(session);
        }
        export
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Export>> {
        self.of_sessions.lock().expect("no code panics while it holds the exports")
    }
}

pub async fn trace_export(
    State(app): State<App>,
    Owner(owner): Owner,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> ApiResult<Json<TraceExportResponse>> {
    let session = app.session(&owner, &SessionId(id)).await?.id.clone();
    if app.exports().begin(&session) {
        let (app, session) = (app.clone(), session.clone());
        let making = tokio::spawn(async move {
            let mut making = Making { app: app.clone(), session: session.clone(), made: None };
            making.made = Some(make(&app, &owner, &session).await);
        });
        let _ = tokio::time::timeout(PATIENCE, making).await;
    }
    let answer = |status| TraceExportResponse { status, url: None, error: None };
    Ok(Json(match app.exports().look(&session) {
        Some(Export::Ready(_)) => {
            let token = app.links().seal("export", &session.0, Utc::now() + LIFETIME);
            let url = format!("{}/export/{token}/{FILE}", api_url(&app, &headers));
            TraceExportResponse { url: Some(url), ..answer(TraceExportStatus::Ready) }
        }
        Some(Export::Failed(error)) => TraceExportResponse { error: Some(error), ..answer(TraceExportStatus::Failed) },
        Some(Export::Running) | None => answer(TraceExportStatus::Pending),
    }))
}

/// The file or a part of it; the token in the URL is the credential.
pub async fn download(
    State(app): State<App>,
    Path((token, file)): Path<(String, String)>,
    method: Method,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let gone = || ApiError::new(StatusCode::NOT_FOUND, "this export link is not valid, or no longer");
    let session = app.links().unseal("export", &token, Utc::now()).filter(|_| file == FILE).ok_or_else(gone)?;
    let opened = tokio::fs::File::open(app.exports().file(&SessionId(session.clone()))).await.map_err(|_| gone())?;
    let meta = opened.metadata().await.map_err(Error::from)?;
    // The next export of the session takes the file's place.
    let made = meta.modified().map_err(Error::from)?.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let content = Content(vec![Part::Opened(opened, meta.len())]);
    Ok(send(content, &etag(&format!("{session}/{made}")), &headers, method == Method::HEAD))
}

async fn make(app: &App, owner: &OwnerId, session: &SessionId) -> Result<()> {
    let timeline = timeline::of(app, owner, session).await?;
    let file = app.exports().file(session);
    app.heavy(move || write(&file, &timeline.to_json())).await?
}

/// Under another name first: nobody fetches a half.
fn write(file: &FilePath, text: &str) -> Result<()> {
    let temporary = file.with_extension("tmp");
    std::fs::create_dir_all(file.parent().expect("an export lies in its folder"))?;
    std::fs::write(&temporary, text)?;
    Ok(std::fs::rename(&temporary, file)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing::{self, owner};
    use crate::ids::OwnerId;
    use axum::http::header::{ETAG, IF_RANGE, RANGE};

    async fn ask(app: &App, owner: OwnerId, id: &SessionId) -> ApiResult<TraceExportResponse> {
        let asked = trace_export(State(app.clone()), Owner(owner), Path(id.0.clone()), HeaderMap::new()).await;
        asked.map(|Json(answer)| answer)
    }

    #[tokio::test]
    async fn an_export_is_fetched_over_its_link_alone() {
        let (app, _engine) = testing::app().await;
        let session = testing::session(&app, Utc::now()).await.id;
        assert!(ask(&app, OwnerId("other".into()), &session).await.is_err());
        let ready = ask(&app, owner(), &session).await.unwrap();
        assert_eq!((ready.status, &ready.error), (TraceExportStatus::Ready, &None));
        let url = ready.url.unwrap();
        let mut parts = url.rsplit('/').map(str::to_owned);
        let (file, token) = (parts.next().unwrap(), parts.next().unwrap());
        let fetch_part = |token: String, file: &str, headers| {
            download(State(app.clone()), Path((token, file.to_owned())), Method::GET, headers)
        };
        let fetch = |token, file| fetch_part(token, file, HeaderMap::new());
        let bytes = async |response: Response| axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let response = fetch(token.clone(), &file).await.unwrap();
        let etag = response.headers()[ETAG].clone();
        let whole = bytes(response).await;
        let part = HeaderMap::from_iter([(RANGE, "bytes=3-9".parse().unwrap()), (IF_RANGE, etag)]);
        let response = fetch_part(token.clone(), &file, part).await.unwrap();
        assert_eq!(response.status(), StatusCode::PARTIAL_CONTENT);
        assert_eq!(bytes(response).await, whole[3..10]);
        let json: serde_json::Value = serde_json::from_slice(&whole).unwrap();
        assert_eq!(json["metadata"]["session"]["id"], session.0);
        assert!(fetch(token.clone(), "other").await.is_err());
        assert!(fetch(format!("{token}0"), &file).await.is_err());
        let upload = app.links().seal("upload", &session.0, Utc::now() + LIFETIME);
        assert!(fetch(upload, &file).await.is_err());
    }

    #[tokio::test]
    async fn a_panic_ends_an_export() {
        let (app, _engine) = testing::app().await;
        let id = SessionId("s".into());
        assert!(app.exports().begin(&id));
        let making = Making { app: app.clone(), session: id.clone(), made: None };
        let panicked = tokio::spawn(async move {
            let _making = making;
            panic!("no time line");
        });
        assert!(panicked.await.is_err());
        assert!(matches!(app.exports().look(&id), Some(Export::Failed(why)) if why.contains("broke off")));
        assert!(app.exports().begin(&id), "the next request tries again");
    }

    #[test]
    fn a_failure_is_told_once_and_a_young_file_is_not_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let exports = Exports::new(dir.path().join("exports"));
        let id = SessionId("s".into());
        assert!(exports.begin(&id) && !exports.begin(&id));
        exports.end(id.clone(), Err(Error::server("disk full")));
        assert!(matches!(exports.look(&id), Some(Export::Failed(why)) if why == "disk full"));
        assert!(exports.begin(&id));
        exports.end(id.clone(), Ok(()));
        assert!(!exports.begin(&id) && matches!(exports.look(&id), Some(Export::Ready(_))));
        exports.forget_old();
        assert!(exports.look(&id).is_some());
    }
}
