//! What a request comes to: known of a command beforehand, and of its outcome afterwards.

use crate::command::{Command, Outcome, RunCommand, SampleRequest, Save};
use crate::ids::SamplerId;
use crate::store::usage::Counters;

use super::runs::Runs;
use super::usage::{Spender, Work};

/// What has to be remembered of a command until its outcome is there.
pub struct Tally {
    /// `None` when nobody is known to count it under: a run that has left the engine.
    pub spender: Option<Spender>,
    /// Tokens that it may generate: they count against its account's rate until it is known how many it did.
    pub reserved: u64,
    known: Counters,
}

/// Tokens that the engine will work on, as far as the command tells: tokens trained on, prompt tokens.
pub fn tokens(command: &Command) -> u64 {
    match command {
        Command::Run { command: RunCommand::ForwardBackward { data, .. }, .. } => {
            data.iter().map(|d| d.tokens.len() as u64).sum()
        }
        Command::Run { .. } => 0,
        Command::Sample { request, .. } => request.prompt.len() as u64,
    }
}

/// Tokens that the command asks to be generated, at most.
fn reserved(command: &Command) -> u64 {
    match command {
        Command::Sample { request, .. } => request.num_samples.saturating_mul(request.params.max_tokens) as u64,
        Command::Run { .. } => 0,
    }
}

/// What the command takes of its account's tokens per minute until its outcome is there.
pub fn rate_tokens(command: &Command) -> u64 {
    tokens(command).saturating_add(reserved(command))
}

impl Tally {
    /// `sampler` names the sampler of a sample.
    pub fn of(command: &Command, sampler: Option<&SamplerId>, runs: &Runs) -> Self {
        let (tokens, reserved) = (tokens(command), reserved(command));
        match command {
            Command::Run { model, command, .. } => {
                let spender = runs.get(model).map(|run| Spender {
                    owner: run.owner,
                    session: Some(run.session),
                    work: Work::Run(model.clone()),
                    base_model: run.base_model,
                });
                Self { spender, reserved, known: of_run(command, tokens) }
            }
            Command::Sample { origin, request } => {
                let spender = Spender {
                    owner: origin.owner.clone(),
                    session: Some(origin.session.clone()),
                    work: sampler.map_or(Work::Other, |s| Work::Sampler(s.clone())),
                    base_model: request.base.clone(),
                };
                Self { spender: Some(spender), reserved, known: of_sample(request, tokens) }
            }
        }
    }

    /// What a request took that came to this outcome.
    pub fn with(&self, outcome: &Outcome) -> Counters {
        let generated = match outcome {
            Outcome::Sampled(output) => output.sequences.iter().map(|s| s.tokens.len() as u64).sum(),
            _ => 0,
        };
        Counters { sampled_tokens: generated, ..self.known }
    }
}

impl Tally {
    /// Tokens of a forward_backward.
    pub fn trained(&self) -> u64 {
        self.known.train_tokens + self.known.forward_tokens
    }

    /// `took`, and so many of its tokens trained on, of the kind they are.
    pub fn add_part(&self, tokens: u64, took: Counters) -> Counters {
        Counters {
            train_tokens: self.known.train_tokens.min(tokens),
            forward_tokens: self.known.forward_tokens.min(tokens),
            ..took
        }
    }
}

fn of_run(command: &RunCommand, tokens: u64) -> Counters {
    match command {
        RunCommand::ForwardBackward { forward_only: true, .. } => {
            Counters { forward_tokens: tokens, ..Counters::default() }
        }
        RunCommand::ForwardBackward { .. } => Counters { train_tokens: tokens, ..Counters::default() },
        RunCommand::Save(Save::Training { .. } | Save::Sampler { .. } | Save::External { .. }) => {
            Counters { checkpoints: 1, ..Counters::default() }
        }
        _ => Counters::default(),
    }
}

/// The prompt runs once; its keys and values serve the other samples too, which counts as cached.
fn of_sample(request: &SampleRequest, tokens: u64) -> Counters {
    let others = request.num_samples.saturating_sub(1) as u64;
    Counters { prefill_tokens: tokens, cached_prefill_tokens: others * tokens, ..Counters::default() }
}

#[cfg(test)]
pub mod testing {
    use crate::command::{Command, Origin, SampleRequest, SampleSource, SamplingParams, Stop};
    use crate::ids::{OwnerId, RequestId, SessionId};

    /// Of a prompt of so many tokens.
    pub fn sample(owner: OwnerId, prompt: usize, num_samples: usize) -> Command {
        let params = SamplingParams { max_tokens: 9, seed: 0, stop: Stop::Eos, temperature: 1.0, top_k: 0, top_p: 1.0 };
        let request = SampleRequest {
            base: "m".into(),
            source: SampleSource::Base,
            prompt: vec![1; prompt],
            num_samples,
            params,
            prompt_logprobs: false,
            prompt_logprobs_last_n: None,
            topk_prompt_logprobs: 0,
            topk_sample_logprobs: 0,
            prompt_targets: None,
            prompt_alt_tokens_k: 0,
        };
        let origin = Origin { owner, session: SessionId("s".into()), promise: RequestId("p".into()) };
        Command::Sample { origin, request }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::sample;
    use super::*;
    use crate::accounts::runs::LiveRun;
    use crate::command::{Datum, Loss, LossInputs, SampleOutput, Sequence, StopReason};
    use crate::ids::{OwnerId, SessionId};

    fn forward_backward(forward_only: bool) -> Command {
        let datum = |n: usize| Datum {
            tokens: vec![1; n],
            targets: vec![1; n],
            k: 1,
            two_dimensional: false,
            inputs: LossInputs::default(),
        };
        let command =
            RunCommand::ForwardBackward { data: vec![datum(3), datum(4)], loss: Loss::CrossEntropy, forward_only };
        Command::Run { owner: OwnerId("o".into()), model: SessionId("s".into()).model(0), seq: 1, command }
    }

    #[test]
    fn training_tokens_are_those_of_all_datums() {
        let runs = Runs::default();
        let id = SessionId("s".into()).model(0);
        let run = LiveRun { owner: OwnerId("o".into()), session: SessionId("s".into()), base_model: "m".into() };
        runs.begin(&id, run, None).unwrap();
        let outcome = Outcome::ForwardBackward { outputs: vec![], metrics: vec![] };
        let counted = |forward_only| {
            let tally = Tally::of(&forward_backward(forward_only), None, &runs);
            assert_eq!(tally.spender.as_ref().unwrap().work, Work::Run(id.clone()));
            let counters = tally.with(&outcome);
            (counters.forward_tokens, counters.train_tokens)
        };
        assert_eq!((counted(true), counted(false)), ((7, 0), (0, 7)));
        runs.end(&id);
        assert!(Tally::of(&forward_backward(true), None, &runs).spender.is_none());
    }

    #[test]
    fn a_prompt_is_prefilled_once_for_all_its_samples() {
        let command = sample(OwnerId("o".into()), 5, 3);
        let sequence = |n: usize| Sequence {
            tokens: vec![2; n],
            logprobs: vec![0.0; n],
            stop_reason: StopReason::Stop,
            topk: None,
            weight_versions: vec![0; n],
        };
        let output = SampleOutput { sequences: vec![sequence(2), sequence(9), sequence(1)], ..SampleOutput::default() };
        let tally = Tally::of(&command, None, &Runs::default());
        assert_eq!(tally.reserved, 3 * 9, "max_tokens of each");
        let counters = tally.with(&Outcome::Sampled(output));
        let expected =
            Counters { prefill_tokens: 5, cached_prefill_tokens: 10, sampled_tokens: 12, ..Counters::default() };
        assert_eq!((counters, rate_tokens(&command)), (expected, 5 + 27));
    }
}
