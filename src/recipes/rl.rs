//! Reinforcement learning: GRPO with importance sampling (sample groups, reward, compare within the group, step).

use std::io::Write;

use anyhow::Context;
use futures_util::future::try_join_all;
use tinderbox_client::types::datum::Datum;
use tinderbox_client::types::model_input::ModelInput;
use tinderbox_client::types::sampling::{SampledSequence, SamplingParams, Stop};
use tinderbox_client::types::tensor_data::TensorData;
use tinderbox_client::types::training::AdamParams;
use tinderbox_client::{SamplingClient, TrainingClient};

use super::addition::{MAX_ANSWER_TOKENS, Problem, STOP, Text};
use super::advantage::group_normalised;
use super::progress::Progress;

pub struct Config {
    pub learning_rate: f64,
    pub steps: usize,
    /// Answers per problem and step: what an answer is compared with.
    pub group_size: usize,
}

/// The mean reward of each step. Every step plays every problem.
pub async fn run(
    training: &TrainingClient,
    text: &Text,
    problems: &[Problem],
    config: &Config,
    out: &mut (impl Write + Send),
) -> anyhow::Result<Vec<f64>> {
    let adam = AdamParams { learning_rate: config.learning_rate, ..Default::default() };
    let mut progress = Progress::new(out, "reward", 1.0);

    for step in 1..=config.steps {
        // A snapshot: it keeps these weights whatever is trained later.
        let sampler = training.save_weights_and_get_sampling_client().await?;
        let first_seed = (step * problems.len()) as u64;
        let plays =
            problems.iter().zip(first_seed..).map(|(&p, seed)| play(&sampler, text, p, config.group_size, seed));
        let groups_p: Vec<Group> = try_join_all(plays).await?;

        let data: Vec<Datum> = groups_p.iter().map(Group::data).collect::<anyhow::Result<Vec<_>>>()?.concat();
        let note = format!("{} of {} groups teach", groups_p.iter().filter(|g| g.teaches()).count(), problems.len());
        if !data.is_empty() {
            let output = training.forward_backward(data, "importance_sampling").await?;
            let stepped = training.optim_step(adam.clone()).await?;
            output.await?;
            stepped.await?;
        }
        let rewards: Vec<f64> = groups_p.into_iter().flat_map(|g| g.rewards_g).collect();
        progress.step(step, rewards.iter().sum::<f64>() / rewards.len() as f64, &note)?;
    }
    progress.summary()?;
    Ok(progress.values().to_vec())
}

/// One problem's answers in one step.
struct Group {
    prompt: Vec<u32>,
    answers_g: Vec<SampledSequence>,
    rewards_g: Vec<f64>,
}

async fn play(
    sampler: &SamplingClient,
    text: &Text,
    problem: Problem,
    group_size: usize,
    seed: u64,
) -> anyhow::Result<Group> {
    let prompt = text.encode(&problem.question())?;
    let params = SamplingParams {
        max_tokens: Some(MAX_ANSWER_TOKENS),
        seed: Some(seed),
        stop: Some(Stop::Text(STOP.into())),
        ..Default::default()
    };
    let answers_g = sampler.sample(ModelInput::from_ints(prompt.iter().copied()), group_size, params).await?.sequences;
    let reward = |s: &SampledSequence| Ok(problem.reward(&text.decode(&s.tokens)?));
    let rewards_g = answers_g.iter().map(reward).collect::<anyhow::Result<_>>()?;
    Ok(Group { prompt, answers_g, rewards_g })
}

impl Group {
    /// Whether some answers were better than others.
    fn teaches(&self) -> bool {
        self.rewards_g.iter().any(|&r| r != self.rewards_g[0])
    }

    /// One datum per answer; none when there is nothing to learn.
    fn data(&self) -> anyhow::Result<Vec<Datum>> {
        if !self.teaches() {
            return Ok(Vec::new());
        }
        let advantages_g = group_normalised(&self.rewards_g);
        self.answers_g.iter().zip(advantages_g).map(|(answer, a)| datum(&self.prompt, answer, a as f32)).collect()
    }
}

/// Prompt and answer as one sequence (T + 1); at prompt positions logprob and advantage are 0, so they teach nothing.
fn datum(prompt: &[u32], answer: &SampledSequence, advantage: f32) -> anyhow::Result<Datum> {
    let logprobs = answer.logprobs.as_ref().context("the server sent no logprobs with its samples")?;
    let tokens = [prompt, &answer.tokens].concat();
    let (inputs, targets) = (&tokens[..tokens.len() - 1], &tokens[1..]);
    let unseen = prompt.len() - 1;
    let behind_prompt =
        |values: &mut dyn Iterator<Item = f32>| TensorData::from_f32(std::iter::repeat_n(0.0, unseen).chain(values));
    let datum = Datum { model_input: ModelInput::from_ints(inputs.iter().copied()), ..Default::default() };
    Ok(datum
        .with("target_tokens", TensorData::from_i64(targets.iter().map(|&t| t.into())))
        .with("logprobs", behind_prompt(&mut logprobs.iter().copied()))
        .with("advantages", behind_prompt(&mut std::iter::repeat_n(advantage, answer.tokens.len()))))
}

#[cfg(test)]
mod tests {
    use tinderbox_client::types::sampling::StopReason;

    use super::*;

    fn answer(tokens: &[u32], logprobs: &[f32]) -> SampledSequence {
        SampledSequence {
            stop_reason: StopReason::Stop,
            tokens: tokens.to_vec(),
            logprobs: Some(logprobs.to_vec()),
            topk_sampled_logprobs: None,
            weight_versions: None,
        }
    }

    #[test]
    fn a_datum_lines_up_with_its_targets() {
        let d = datum(&[1, 2, 3], &answer(&[8, 9], &[-0.5, -0.25]), 2.0).unwrap();
        assert_eq!(d.model_input.to_ints().unwrap(), [1, 2, 3, 8]);
        let input = |name: &str| d.loss_fn_inputs[name].values.clone().into_f32();
        assert_eq!(input("target_tokens"), [2.0, 3.0, 8.0, 9.0]);
        assert_eq!(input("logprobs"), [0.0, 0.0, -0.5, -0.25]);
        assert_eq!(input("advantages"), [0.0, 0.0, 2.0, 2.0]);
    }

    #[test]
    fn a_group_of_equals_gives_no_data() {
        let group = |rewards: [f64; 2]| Group {
            prompt: vec![1],
            answers_g: vec![answer(&[8], &[-0.5]), answer(&[9], &[-1.0])],
            rewards_g: rewards.to_vec(),
        };
        assert!(group([1.0, 1.0]).data().unwrap().is_empty());
        let data = group([1.0, 0.0]).data().unwrap();
        let advantages: Vec<f32> =
            data.iter().flat_map(|d| d.loss_fn_inputs["advantages"].values.clone().into_f32()).collect();
        assert!(advantages[0] > 0.99 && advantages[1] < -0.99, "{advantages:?}");
    }
}
