//! Where state lives: the data directory and the database's address.

use std::fmt;
use std::path::{Path, PathBuf};

use super::env::Env;
use super::given;
use crate::error::{Error, Result};

/// The embedded database's file in the data directory.
const FILE: &str = "tinderbox.db";

#[derive(Clone, PartialEq, Eq)]
pub struct Store {
    /// `sqlite:…` or `postgres://…`; may hold a password.
    pub url: String,
    /// Absolute; checkpoints lie below it.
    pub data_dir: PathBuf,
}

impl Store {
    pub fn new(data_dir: Option<PathBuf>, url: Option<String>, env: &Env) -> Result<Self> {
        let data_dir = match given(data_dir, env, "TINDERBOX_DATA_DIR")? {
            Some(dir) if dir.as_os_str().is_empty() => return Err(Error::user("--data-dir is empty")),
            Some(dir) => dir,
            None => default_data_dir(env)?,
        };
        // Rows remember checkpoint directories, and the next start may be from elsewhere.
        let data_dir = std::path::absolute(&data_dir)
            .map_err(|e| Error::user(format!("--data-dir {}: {e}", data_dir.display())))?;
        let url = given(url, env, "TINDERBOX_DATABASE_URL")?.or(env.get("DATABASE_URL").map(str::to_owned));
        match url {
            None => Ok(Self::in_dir(&data_dir)),
            Some(url) => Ok(Self { url: checked(url)?, data_dir }),
        }
    }

    /// The database as messages name it: the path of the data directory's own file, or the address without password
    /// and options.
    pub fn database(&self) -> String {
        match *self == Self::in_dir(&self.data_dir) {
            true => self.data_dir.join(FILE).display().to_string(),
            false => redacted(&self.url),
        }
    }

    /// Whether the database is SQLite, whose file this process opens itself.
    pub fn is_embedded(&self) -> bool {
        self.url.starts_with("sqlite:")
    }

    /// The embedded database's file in the data directory.
    pub fn database_file(&self) -> PathBuf {
        self.data_dir.join(FILE)
    }

    /// Whether it is that file, or one of those that SQLite keeps beside it.
    pub fn is_of_database(&self, path: &Path) -> bool {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(FILE))
    }

    /// The embedded default: an SQLite file in the data directory.
    pub fn in_dir(data_dir: &Path) -> Self {
        Self { url: sqlite_url(&data_dir.join(FILE)), data_dir: data_dir.into() }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("url", &redacted(&self.url)).field("data_dir", &self.data_dir).finish()
    }
}

/// A database address fit for logs: without password and options.
pub fn redacted(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://").filter(|_| !url.starts_with("sqlite:")) else {
        return url.split('?').next().unwrap_or_default().to_owned();
    };
    // A password may hold a bare `/` or `?`, so the last `@` ends it.
    let (user, place) = match rest.rsplit_once('@') {
        Some((login, place)) => (login.split(':').next().map(|user| format!("{user}@")), place),
        None => (None, rest),
    };
    format!("{scheme}://{}{}", user.unwrap_or_default(), place.split('?').next().unwrap_or_default())
}

fn checked(url: String) -> Result<String> {
    if ["sqlite:", "postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Ok(url);
    }
    let scheme = url.split(':').next().unwrap_or_default();
    Err(Error::user(format!(
        "the database address begins with {scheme:?}: give --database-url (or TINDERBOX_DATABASE_URL, DATABASE_URL) as \
         sqlite:FILE or postgres://USER:PASSWORD@HOST/DATABASE"
    )))
}

/// `sqlite:` and the path, percent-encoded where a URL would take a byte for something else.
fn sqlite_url(path: &Path) -> String {
    let mut url = String::from("sqlite:");
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'_' | b'-' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => url.push(char::from(*byte)),
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url
}

fn default_data_dir(env: &Env) -> Result<PathBuf> {
    let home = || env.get("HOME").map(Path::new);
    let base = if cfg!(target_os = "macos") {
        home().map(|h| h.join("Library/Application Support"))
    } else {
        let xdg = env.get("XDG_DATA_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
        xdg.or_else(|| home().map(|h| h.join(".local/share")))
    };
    base.map(|dir| dir.join("tinderbox"))
        .ok_or_else(|| Error::user("no data directory: HOME is not set; give --data-dir or TINDERBOX_DATA_DIR"))
}

/// The cluster that `tests/postgres run` started, without a database's name.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "this folder is where the environment is read")]
pub fn postgres_for_testing() -> Option<String> {
    std::env::var("POSTGRES_SERVER").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(pairs: &[(&str, &str)]) -> Result<Store> {
        Store::new(None, None, &Env::for_testing(pairs))
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_data_directory_follows_xdg() {
        assert_eq!(store(&[("HOME", "/h")]).unwrap().data_dir, PathBuf::from("/h/.local/share/tinderbox"));
        assert_eq!(store(&[("HOME", "/h"), ("XDG_DATA_HOME", "/d")]).unwrap().data_dir, PathBuf::from("/d/tinderbox"));
        assert_eq!(
            store(&[("HOME", "/h"), ("XDG_DATA_HOME", "relative")]).unwrap().data_dir,
            PathBuf::from("/h/.local/share/tinderbox")
        );
        assert!(store(&[]).unwrap_err().message.contains("--data-dir"));
    }

    #[test]
    fn our_variable_wins_over_the_common_one() {
        let common = ("DATABASE_URL", "postgres://db/common");
        let home = ("HOME", "/h");
        assert_eq!(store(&[home, common]).unwrap().url, "postgres://db/common");
        assert_eq!(store(&[home, common, ("TINDERBOX_DATABASE_URL", "sqlite:own.db")]).unwrap().url, "sqlite:own.db");
        let message = store(&[home, ("DATABASE_URL", "mysql://u:secret@db/x")]).unwrap_err().message;
        assert!(message.contains("\"mysql\"") && !message.contains("secret"), "{message}");
    }

    #[test]
    fn the_database_is_named_as_a_path_or_without_its_password() {
        let env = Env::for_testing(&[]);
        let named = |url: Option<&str>| Store::new(Some("/a b".into()), url.map(Into::into), &env).unwrap().database();
        assert_eq!(named(None), "/a b/tinderbox.db");
        assert_eq!(named(Some("postgres://u:s3cret@h:5432/db?x=s3cret")), "postgres://u@h:5432/db");
        assert_eq!(named(Some("sqlite:other.db?mode=rw")), "sqlite:other.db");
    }

    #[test]
    fn odd_paths_are_encoded() {
        assert_eq!(sqlite_url(Path::new("/a b/c?d#%/é.db")), "sqlite:/a%20b/c%3Fd%23%25/%C3%A9.db");
    }

    #[test]
    fn passwords_do_not_reach_logs() {
        for (url, shown) in [
            ("postgres://u:p@h:5432/db?sslmode=require", "postgres://u@h:5432/db"),
            ("postgres://u:p/w?@d@h/db", "postgres://u@h/db"),
            ("postgres://h/db?password=p", "postgres://h/db"),
            ("sqlite:/data/x.db?mode=rwc", "sqlite:/data/x.db"),
        ] {
            assert_eq!(redacted(url), shown);
        }
    }
}
