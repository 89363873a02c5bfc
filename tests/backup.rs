//! `tinderbox backup` of a server that trains and saves meanwhile: a second server on the copy loads all that it lists.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sha2::{Digest, Sha256};
use tinderbox_client::types::checkpoints::{CheckpointType, CheckpointsQuery, RunsQuery};
use tinderbox_client::types::datum::Datum;
use tinderbox_client::types::model_input::ModelInput;
use tinderbox_client::types::sampling::SamplingParams;
use tinderbox_client::types::training::{AdamParams, LoraConfig};
use tinderbox_client::{SaveOptions, ServiceClient, TrainingClient};

use super::program::{MODEL, Server, ran, tinderbox};

async fn step(run: &TrainingClient) {
    let datum = Datum::supervised(&[51, 43, 52, 61, 55], [0.0, 0.0, 0.0, 1.0]);
    let backward = run.forward_backward(vec![datum], "cross_entropy").await.unwrap();
    let step = run.optim_step(AdamParams { learning_rate: 1e-3, ..Default::default() }).await.unwrap();
    backward.await.unwrap();
    step.await.unwrap();
}

async fn save(run: &TrainingClient, name: &str) -> String {
    let options = SaveOptions { overwrite: true, ..Default::default() };
    run.save_state_with(name, options).await.unwrap().await.unwrap().path
}

async fn sampled(service: &ServiceClient, path: &str) -> Vec<u32> {
    let sampler = service.create_sampling_client(None, Some(path)).await.unwrap();
    let params = SamplingParams { max_tokens: Some(8), temperature: 0.0, ..Default::default() };
    sampler.sample(ModelInput::from_ints([51, 43, 52]), 1, params).await.unwrap().sequences[0].tokens.clone()
}

/// SHA-256 of every file below, by its path from there.
fn hashes(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut open) = (BTreeMap::new(), vec![dir.to_owned()]);
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let hash = Sha256::digest(std::fs::read(&path).unwrap()).to_vec();
                found.insert(path.strip_prefix(dir).unwrap().to_owned(), hash);
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_running_server_serves_all_that_it_lists() {
    let dir = tempfile::tempdir().unwrap();
    let (data, target) = (dir.path().join("data"), dir.path().join("backup"));
    let first = Server::start(dir.path(), &data, MODEL).await;
    let service = first.service().await;
    let run = service.create_lora_training_client(MODEL, LoraConfig { rank: 4, ..Default::default() }).await.unwrap();
    step(&run).await;
    save(&run, "one").await;
    let weights = run.save_weights_for_sampler("two", None).await.unwrap().await.unwrap().path.unwrap();
    let said = sampled(&service, &weights).await;
    // Goes on while the backup is made: steps, an overwritten name, new names, deletions.
    let stop = Arc::new(AtomicBool::new(false));
    let (rest, stopping, saving) = (first.rest(), stop.clone(), run.clone());
    let saves = tokio::spawn(async move {
        for n in 0.. {
            step(&saving).await;
            save(&saving, "latest").await;
            let passing = save(&saving, &format!("passing-{n}")).await;
            if n % 2 == 0 {
                rest.delete_checkpoint_from_tinker_path(&passing).await.unwrap();
            }
            if stopping.load(Ordering::Relaxed) {
                return n;
            }
        }
        0
    });
    let made = ran(tinderbox().arg("backup").arg(&target).arg("--data-dir").arg(&data)).await;
    let told = String::from_utf8(made.stderr).unwrap();
    assert!(made.status.success(), "{told}");
    assert!(told.contains(&format!("tinderbox serve --data-dir {}", target.display())), "{told}");
    stop.store(true, Ordering::Relaxed);
    saves.await.unwrap();
    let quiet = dir.path().join("quiet");
    let made = ran(tinderbox().arg("backup").arg(&quiet).arg("--data-dir").arg(&data)).await;
    assert!(made.status.success());
    // The same files, where they are still there, and the same answers without them.
    let (before, after) = (hashes(&data.join("checkpoints")), hashes(&target.join("checkpoints")));
    let both = after.iter().filter(|(path, _)| before.contains_key(*path));
    assert!(both.clone().count() > 4);
    both.for_each(|(path, hash)| assert_eq!(before[path], *hash, "{}", path.display()));
    let port = first.port;
    drop(first);
    std::fs::rename(&data, dir.path().join("elsewhere")).unwrap();
    // Its client goes on with its run on a copy that has all that was asked before.
    let third = Server::start_on(port, dir.path(), &quiet, MODEL).await;
    step(&run).await;
    let path = save(&run, "after").await;
    assert_eq!(
        third.rest().list_user_checkpoints(&CheckpointsQuery::default()).await.unwrap().checkpoints[0].tinker_path,
        path
    );
    assert!(!data.exists(), "nothing is written where the original was");

    let second = Server::start(dir.path(), &target, MODEL).await;
    let service = second.service().await;
    assert_eq!(sampled(&service, &weights).await, said);
    let listed = second.rest().list_user_checkpoints(&CheckpointsQuery::default()).await.unwrap().checkpoints;
    assert!(listed.iter().any(|c| c.tinker_path.ends_with("/weights/one")), "{listed:?}");
    for checkpoint in &listed {
        match checkpoint.checkpoint_type {
            CheckpointType::Training => {
                let loaded = service.create_training_client_from_state_with_optimizer(&checkpoint.tinker_path).await;
                let loaded = loaded.unwrap_or_else(|e| panic!("{}: {e}", checkpoint.tinker_path));
                step(&loaded).await;
            }
            _ => drop(sampled(&service, &checkpoint.tinker_path).await),
        }
    }
}

#[tokio::test]
async fn a_second_server_on_one_directory_and_a_newer_directory_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start(dir.path(), &data, MODEL).await;
    let model = format!("{MODEL}={}", dir.path().join("model").display());
    let serve = async || {
        let ended =
            ran(tinderbox().args(["serve", "--port", "0", "--model", &model]).arg("--data-dir").arg(&data)).await;
        assert!(!ended.status.success());
        String::from_utf8(ended.stderr).unwrap()
    };
    let message = serve().await;
    assert!(message.contains(&format!("process {}", server.process_id())), "{message}");
    assert!(message.contains(data.to_str().unwrap()), "{message}");
    drop(server);
    std::fs::write(data.join("format.json"), r#"{"version": 7}"#).unwrap();
    let message = serve().await;
    assert!(message.contains("written by a newer tinderbox (format 7; this one knows up to 1)"), "{message}");
}

#[tokio::test]
async fn runs_of_a_model_that_is_served_no_longer_are_listed_and_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start(dir.path(), &data, MODEL).await;
    let service = server.service().await;
    let run = service.create_lora_training_client(MODEL, LoraConfig { rank: 4, ..Default::default() }).await.unwrap();
    let id = run.model_id().to_owned();
    let state = save(&run, "state").await;
    let weights = run.save_weights_for_sampler("weights", None).await.unwrap().await.unwrap().path.unwrap();
    drop((run, service, server));

    let server = Server::start(dir.path(), &data, "demo/other").await;
    let says =
        |whose: &str| format!("base model {MODEL} of {whose} is no longer served here; start with --model {MODEL}=DIR");
    let rest = server.rest();
    let listed = rest.list_training_runs(&RunsQuery::default()).await.unwrap().training_runs;
    assert!(listed[0].unavailable.as_ref().unwrap().contains(&says(&format!("run {id}"))), "{listed:?}");
    assert_eq!(rest.get_training_run(&id).await.unwrap(), listed[0]);
    let service = server.service().await;
    let error = service.create_training_client_from_state(&state).await.err().unwrap().to_string();
    assert!(error.contains(&says(&state)), "{error}");
    let error = service.create_sampling_client(None, Some(&weights)).await.err().unwrap().to_string();
    assert!(error.contains(&says(&weights)), "{error}");
    let error = service.create_lora_training_client(MODEL, LoraConfig::default()).await.err().unwrap().to_string();
    assert!(error.contains("served are: demo/other"), "{error}");
    drop(server);
    let server = Server::start(dir.path(), &data, MODEL).await;
    assert_eq!(server.rest().get_training_run(&id).await.unwrap().unavailable, None);
}
