//! For tests: jobs as the engine sees them.

use std::sync::mpsc::Receiver;

use crate::api::state::App;
use crate::api::testing::owner;
use crate::command::{StopReason, TokenEvent};
use crate::engine::handle::{Message, Submission};

use super::jobs::Jobs;
use super::settings::Settings;

/// Jobs of so many prompts, and what of them came to the engine.
pub async fn start(app: &App, prompts: usize, followed: bool, engine: &Receiver<Message>) -> (Jobs, Vec<Submission>) {
    let target = app.target(&owner(), "tiny").await.unwrap();
    let request = Settings::default().request(app, &target, &[1], None).unwrap();
    let permit = app.futures().admission().enter(&owner()).unwrap();
    let jobs = Jobs::start(app, &owner(), &target, vec![request; prompts], permit, followed).unwrap();
    let submitted = (0..prompts).map(|_| match engine.try_recv() {
        Ok(Message::Submit(s)) => *s,
        _ => panic!("nothing was submitted"),
    });
    let submitted = submitted.collect();
    (jobs, submitted)
}

pub fn token(token: u32, stop_reason: Option<StopReason>) -> TokenEvent {
    TokenEvent { sample: 0, token, logprob: -1.0, topk: None, stop_reason }
}
