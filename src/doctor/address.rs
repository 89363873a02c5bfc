//! Any Tinker address, call by call, as a client uses it. Everything that is made there is deleted again.

use std::future::Future;
use std::time::{Duration, Instant};

use chrono::{TimeDelta, Utc};
use tinderbox_client::types::checkpoints::RunsQuery;
use tinderbox_client::types::datum::Datum;
use tinderbox_client::types::model_input::ModelInput;
use tinderbox_client::types::sampling::SamplingParams;
use tinderbox_client::types::sessions::FinishReason;
use tinderbox_client::types::training::{AdamParams, LoraConfig};
use tinderbox_client::{ClientOptions, Error, RestClient, SamplingClient, ServiceClient, TrainingClient};

use super::advice::{SLOW, advice};
use super::clock;
use super::line::{Line, Verdict, median};

const AREA: &str = "address";
/// Quick calls are made so often.
const REPEATS: usize = 5;
/// Ids that every tokenizer has.
const TOKENS: [u32; 6] = [1, 2, 3, 4, 5, 6];
const NAME: &str = "doctor";
const FULL: &str = ":full";
/// Should the deletion fail, the checkpoints end by themselves; the protocol's shortest.
const LIFETIME: i64 = 3600;
/// A `Date` header has whole seconds, and was written before it was read.
const SECOND: TimeDelta = TimeDelta::milliseconds(500);

/// All calls in the order in which a client makes them.
pub async fn check(url: &str, key: &str, wanted: Option<&str>, limit: Duration) -> Vec<Line> {
    let mut probe = Probe { limit, lines: Vec::new(), blocked: None };
    let options = ClientOptions {
        display_name: Some("tinderbox doctor".into()),
        // Each fault is told at once.
        retry_for: Some(Duration::ZERO),
        ..ClientOptions::new(url, key)
    };
    if let Some((rest, model)) = probe.service(&options, wanted).await {
        probe.session(&options, &rest, &model).await;
    }
    probe.lines
}

struct Probe {
    limit: Duration,
    lines: Vec<Line>,
    /// The check without which the others mean nothing.
    blocked: Option<String>,
}

impl Probe {
    /// What answers without a session. → the model that is tried.
    async fn service(&mut self, options: &ClientOptions, wanted: Option<&str>) -> Option<(RestClient, String)> {
        let rest = match RestClient::connect_with(options) {
            Ok(rest) => rest,
            Err(e) => {
                self.lines.push(Line::fail(AREA, "settings", e.to_string(), advice(&e)));
                return None;
            }
        };
        let health = self.quick("healthz", || rest.healthz(), |(health, _)| health.status.clone()).await;
        if let Some((_, date)) = health {
            self.lines.push(match date {
                Some(there) => clock::compared(AREA, Utc::now(), there + SECOND),
                None => Line::skip("clock", AREA, "the server does not say what time it is"),
            });
        }
        self.quick("client config", || rest.client_config(), |_| "flags for clients".into()).await;
        let served = self.quick("capabilities", || rest.get_server_capabilities(), |_| "served models".into()).await?;
        let names: Vec<String> = served.supported_models.into_iter().filter_map(|m| m.model_name).collect();
        let chosen = match wanted {
            Some(name) => names.iter().find(|n| *n == name),
            None => names.iter().find(|n| !n.ends_with(FULL)),
        };
        match chosen {
            Some(model) => {
                self.lines.push(Line::pass(AREA, "model", format!("{model}, of {}", names.join(", "))));
                Some((rest, model.trim_end_matches(FULL).to_owned()))
            }
            None => {
                let found =
                    format!("{} is not among what is served: {}", wanted.unwrap_or("a model"), names.join(", "));
                self.lines.push(Line::fail(AREA, "model", found, "give the name of a served model with --model"));
                None
            }
        }
    }

    async fn session(&mut self, options: &ClientOptions, rest: &RestClient, model: &str) {
        let open = ServiceClient::connect(options.clone());
        let Some(service) = self.call("create session", open, |s| s.session_id().to_owned()).await else { return };
        self.quick("heartbeat", || service.heartbeat(), |_| "the session is kept".into()).await;
        self.blocked = None;
        let base =
            self.call("sampler of the base model", service.create_sampling_client(Some(model), None), of_sampler);
        if let Some(sampler) = base.await {
            self.sample("sample of the base model", &sampler).await;
        }
        self.blocked = None;
        let lora = LoraConfig { rank: 4, ..LoraConfig::default() };
        let create = service.create_lora_training_client(model, lora);
        if let Some(run) = self.call("create LoRA run", create, |run| run.model_id().to_owned()).await {
            self.train(&service, rest, &run).await;
            self.blocked = None;
            let unload = async { run.unload().await?.await };
            self.call("unload", unload, |_| "the run is ended".into()).await;
        }
        self.blocked = None;
        let finish = service.close(FinishReason::Success, None);
        self.call("finish session", finish, |()| "the session is ended".into()).await;
    }

    /// A step, what it can be saved as, and the end of that.
    async fn train(&mut self, service: &ServiceClient, rest: &RestClient, run: &TrainingClient) {
        let datum = Datum::supervised(&TOKENS, [1.0; TOKENS.len() - 1]);
        let backward = async { run.forward_backward(vec![datum], "cross_entropy").await?.await };
        let loss = |out: &tinderbox_client::types::training::ForwardBackwardOutput| {
            out.metrics.get("loss:sum").map_or_else(|| "no loss:sum".to_owned(), |loss| format!("loss:sum {loss:.4}"))
        };
        self.call("forward_backward", backward, loss).await;
        let step = async { run.optim_step(AdamParams { learning_rate: 1e-4, ..AdamParams::default() }).await?.await };
        self.call("optim_step", step, |_| "AdamW".into()).await;
        let state = async { Ok(run.save_state(NAME, Some(LIFETIME)).await?.await?.path) };
        let state = self.call("save", state, String::clone).await;
        let weights = async {
            let saved = run.save_weights_for_sampler(NAME, Some(LIFETIME)).await?.await?;
            saved.path.ok_or_else(|| Error::Decode("a named save without a path".into()))
        };
        let weights = self.call("save for sampling", weights, String::clone).await;
        if let Some(path) = &weights {
            let create = service.create_sampling_client(None, Some(path));
            if let Some(sampler) = self.call("sampler of saved weights", create, of_sampler).await {
                self.sample("sample of saved weights", &sampler).await;
            }
        }
        self.blocked = None;
        self.list(rest, run.model_id(), [&state, &weights]).await;
        self.blocked = None;
        // Also what was asked for and not answered in time.
        let kinds = [(state, "weights"), (weights, "sampler_weights")];
        for (path, kind) in kinds {
            let sure = path.is_some();
            let path = path.unwrap_or_else(|| format!("tinker://{}/{kind}/{NAME}", run.model_id()));
            let delete = async {
                match rest.delete_checkpoint_from_tinker_path(&path).await {
                    Err(e) if !sure && e.status() == Some(404) => Ok(()),
                    done => done,
                }
            };
            self.call(&format!("delete {kind}"), delete, |()| path.clone()).await;
        }
    }

    /// The run and what it saved are on the lists.
    async fn list(&mut self, rest: &RestClient, run: &str, saved: [&Option<String>; 2]) {
        let query = RunsQuery::default();
        let listed = async {
            let runs = rest.list_training_runs(&query).await?.training_runs;
            match runs.iter().any(|r| r.training_run_id == run) {
                true => Ok(runs.len()),
                false => Err(Error::Decode(format!("run {run} is not listed"))),
            }
        };
        self.call("list runs", listed, |n| format!("{n} on the first page")).await;
        let listed = async {
            let found = rest.list_checkpoints(run).await?.checkpoints;
            match saved.into_iter().flatten().find(|path| !found.iter().any(|c| c.tinker_path == **path)) {
                None => Ok(found.len()),
                Some(path) => Err(Error::Decode(format!("{path} is not listed"))),
            }
        };
        self.call("list checkpoints", listed, |n| format!("{n} of the run")).await;
    }

    async fn sample(&mut self, check: &str, sampler: &SamplingClient) {
        let params = SamplingParams { max_tokens: Some(4), temperature: 0.0, ..SamplingParams::default() };
        let sample = async {
            let sampled = sampler.sample(ModelInput::from_ints(TOKENS), 1, params).await?;
            let tokens = sampled.sequences.first().map(|s| s.tokens.len());
            tokens.filter(|n| *n > 0).ok_or_else(|| Error::Decode("a sample without tokens".into()))
        };
        self.call(check, sample, |n| format!("{n} tokens")).await;
    }

    /// One call; what comes after one that failed is left out.
    async fn call<T>(
        &mut self,
        check: &str,
        call: impl Future<Output = Result<T, Error>>,
        says: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        if let Some(first) = &self.blocked {
            self.lines.push(Line::skip(AREA, check, format!("since {first:?} failed")));
            return None;
        }
        let start = Instant::now();
        let answer = tokio::time::timeout(self.limit, call).await;
        let (line, answer) = match answer {
            Ok(Ok(answer)) => (Line::pass(AREA, check, says(&answer)), Some(answer)),
            Ok(Err(e)) => (Line::fail(AREA, check, e.to_string(), advice(&e)), None),
            Err(_) => (Line::fail(AREA, check, format!("no answer in {} s", self.limit.as_secs()), SLOW), None),
        };
        if line.result == Verdict::Fail {
            self.blocked = Some(check.to_owned());
        }
        self.lines.push(line.since(start));
        answer
    }

    /// As [`Self::call`], a few times, with the median of their times.
    async fn quick<T, F: Future<Output = Result<T, Error>>>(
        &mut self,
        check: &str,
        call: impl Fn() -> F,
        says: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        let mut answer = self.call(check, call(), says).await?;
        let mut times = Vec::with_capacity(REPEATS);
        for _ in 0..REPEATS {
            let start = Instant::now();
            let Ok(Ok(again)) = tokio::time::timeout(self.limit, call()).await else {
                self.blocked = Some(check.to_owned());
                self.lines.pop();
                self.lines.push(Line::fail(AREA, check, "answers only sometimes", SLOW));
                return None;
            };
            times.push(start.elapsed());
            answer = again;
        }
        // The first one has opened the connection.
        if let Some(line) = self.lines.pop() {
            self.lines.push(line.took(median(times)));
        }
        Some(answer)
    }
}

fn of_sampler(sampler: &SamplingClient) -> String {
    sampler.sampler_id().to_owned()
}
