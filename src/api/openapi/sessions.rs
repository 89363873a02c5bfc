//! Tag `sessions`: open, keep alive, look up, finish.

use serde_json::json;
use tinderbox_client::types::checkpoints::RunsQuery;
use tinderbox_client::types::search::{SessionSearchRequest, SessionSearchResponse};
use tinderbox_client::types::sessions::{
    AssignProjectRequest, CreateSessionRequest, CreateSessionResponse, FinishSessionRequest, GetSessionResponse,
    ListSessionsResponse, SessionHeartbeatRequest, SessionHeartbeatResponse, TraceExportResponse,
};

use super::examples::{RUN, SAMPLER, SESSION, TIME};
use super::operation::{Operation, get, post, put};

pub fn operations() -> Vec<Operation> {
    let mut all = lives();
    all.extend(searches());
    all
}

fn lives() -> Vec<Operation> {
    vec![
        post("/api/v1/create_session", "create_session")
            .says(
                "Open a session",
                "Sent by a `ServiceClient` before its first training or sampling client. Runs and samplers belong to a \
                 session; their ids begin with its id.",
            )
            .takes::<CreateSessionRequest>(json!({
                "type": "create_session", "tags": ["example"], "user_metadata": { "purpose": "a first try" },
                "sdk_version": "0.38.0", "display_name": "first try",
            }))
            .gives::<CreateSessionResponse>(
                "The session's id. Messages, if any, are for the user.",
                json!({ "type": "create_session", "session_id": SESSION }),
            ),
        post("/api/v1/session_heartbeat", "session_heartbeat")
            .says(
                "Keep a session alive",
                "Sent by every client with a session, every 10 seconds. A session without heartbeat and without \
                 requests for a day (`TINDERBOX_SESSION_TIMEOUT`) ends.",
            )
            .takes::<SessionHeartbeatRequest>(json!({ "type": "session_heartbeat", "session_id": SESSION }))
            .gives::<SessionHeartbeatResponse>("Heard.", json!({ "type": "session_heartbeat" }))
            .may_miss()
            .refuses(410, "The session is finished; no further heartbeats are wanted."),
        get("/api/v1/sessions", "list_sessions")
            .says("List sessions", "`RestClient.list_sessions()`. The newest first.")
            .query::<RunsQuery>()
            .gives::<ListSessionsResponse>("A page of ids.", json!({ "sessions": [SESSION] })),
        get("/api/v1/sessions/{session_id}", "get_session")
            .says("What belongs to a session", "`RestClient.get_session()`.")
            .segment("session_id", "The session's id.", SESSION)
            .gives::<GetSessionResponse>(
                "Its runs and samplers.",
                json!({
                    "training_run_ids": [RUN], "sampler_ids": [SAMPLER],
                    "user_metadata": { "purpose": "a first try" }, "display_name": "first try",
                }),
            ),
        put("/api/v1/sessions/{session_id}/project", "set_session_project")
            .says("Put a session into a project", "`RestClient.set_session_project()`. A project is any name.")
            .segment("session_id", "The session's id.", SESSION)
            .takes::<AssignProjectRequest>(json!({ "project_id": "my-project" }))
            .gives_nothing("It belongs to the project now."),
        post("/api/v1/sessions/{session_id}/finish", "finish_session")
            .says(
                "End a session",
                "Sent by a client that is done. The session's runs leave memory and its samples are dropped; saved \
                 checkpoints stay. The first reason is kept, a repeat is harmless. The body may be left out.",
            )
            .segment("session_id", "The session's id.", SESSION)
            .takes::<FinishSessionRequest>(json!({ "reason": { "type": "success" }, "detail": null }))
            .or_no_body()
            .gives_nothing("The session has ended."),
    ]
}

fn searches() -> Vec<Operation> {
    vec![
        post("/api/v1/sessions/search", "search_sessions")
            .says("Search sessions", "`RestClient.search_sessions()`. The newest first; a page follows another by its cursor.")
            .takes::<SessionSearchRequest>(json!({
                "user_metadata": { "purpose": "a first try" }, "display_name": "first", "owner": { "type": "own" }, "limit": 10,
            }))
            .gives::<SessionSearchResponse>(
                "A page of sessions.",
                json!({ "sessions": [{
                    "session_id": SESSION, "created_at": TIME, "owner": "local", "project_id": "", "checkpoints_count": 1,
                    "status": { "type": "active" }, "display_name": "first try",
                }] }),
            ),
        get("/api/v1/sessions/{session_id}/trace_export", "trace_export")
            .says(
                "A session's timeline as a file",
                "`RestClient.export_session_trace()`, `tinker session trace`. Ask until it is no longer pending.",
            )
            .segment("session_id", "The session's id.", SESSION)
            .gives::<TraceExportResponse>("How far it is, and a link that needs no key.", json!({ "status": "pending" })),
        get("/api/v1/export/{token}/{file}", "export_download")
            .says("A file behind an export's link", "Needs no key: the token in the link is the permission.")
            .open()
            .segment("token", "From a link.", "EXPORT")
            .segment("file", "The file's name.", "FILE")
            .gives_file("The file."),
    ]
}
