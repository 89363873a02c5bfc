//! The demo: teaches a random model to add, first from examples, then from rewards, through the API alone.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, ensure};
use tinderbox_client::types::sessions::FinishReason;
use tinderbox_client::{ClientOptions, ServiceClient};

use super::addition::{Problem, Text};
use super::{rl, sft};

/// Sums of two numbers below this.
const DIGITS: u32 = 6;

const SFT_LEARNING_RATE: f64 = 2e-3;
/// Nats per answer token: about a third of the sampled answers are right, so that rewards have something to raise.
const SFT_TARGET_LOSS: f64 = 0.7;
const SFT_STEPS_MAX: usize = 150;
const SFT_REPORT_EVERY: usize = 2;

/// Calibrated with the optimiser state that SFT left: a fresh one takes first steps that undo what was learnt.
const RL_LEARNING_RATE: f64 = 1.5e-3;
const RL_STEPS: usize = 30;
const RL_GROUP_SIZE: usize = 16;
/// The demo fails when the last steps' mean reward is not at least this much above the first ones'.
const RL_LEAST_RISE: f64 = 0.15;
/// How many steps at either end are compared.
const RL_ENDS: usize = 5;

/// Trains every weight of `model_name` on the server at `base_url`; `tokenizer_dir` holds that model's `tokenizer.json`.
///
/// Shows the curves while they grow. Errors: what the server refuses, and a loss or reward that does not improve.
pub async fn run(base_url: &str, api_key: &str, model_name: &str, tokenizer_dir: &Path) -> anyhow::Result<()> {
    let out = &mut std::io::stdout();
    let text = Text::open(tokenizer_dir)?;
    let problems = Problem::all(DIGITS);
    let service = ServiceClient::connect(ClientOptions::new(base_url, api_key)).await.context("opening a session")?;

    writeln!(out, "\n1. Supervised: {} sums as examples, every weight of {model_name} is trained.", problems.len())?;
    writeln!(out, "   Loss in nats per answer token, until it is below {SFT_TARGET_LOSS}:")?;
    let training = service.create_training_client(&format!("{model_name}:full"), None, None).await?;
    let config = sft::Config {
        learning_rate: SFT_LEARNING_RATE,
        target_loss: SFT_TARGET_LOSS,
        steps_max: SFT_STEPS_MAX,
        report_every: SFT_REPORT_EVERY,
        save_as: "half-trained".into(),
    };
    let state = sft::run(&training, &text, &problems, &config, out).await?;
    writeln!(out, "   Saved as {state}")?;

    writeln!(
        out,
        "\n2. Reinforcement: GRPO from that half-trained state, {RL_GROUP_SIZE} answers to each sum per step."
    )?;
    writeln!(out, "   Mean reward, 1 for a right answer:")?;
    let training = service.create_training_client_from_state_with_optimizer(&state).await?;
    let config = rl::Config { learning_rate: RL_LEARNING_RATE, steps: RL_STEPS, group_size: RL_GROUP_SIZE };
    let rewards = rl::run(&training, &text, &problems, &config, out).await?;
    let (before, after) = ends(&rewards);
    ensure!(
        after - before >= RL_LEAST_RISE,
        "the mean reward went from {before:.3} to {after:.3}, less than {RL_LEAST_RISE} up"
    );

    service.close(FinishReason::Success, None).await?;
    write!(out, "{}", farewell(base_url, api_key, model_name))?;
    Ok(())
}

/// Mean of the first and of the last `RL_ENDS` rewards.
fn ends(rewards: &[f64]) -> (f64, f64) {
    let mean = |r: &[f64]| r.iter().sum::<f64>() / r.len() as f64;
    let n = RL_ENDS.min(rewards.len());
    (mean(&rewards[..n]), mean(&rewards[rewards.len() - n..]))
}

/// How to go on with one's own script.
fn farewell(base_url: &str, api_key: &str, model_name: &str) -> String {
    format!(
        "
3. Your own script: aim the Tinker SDK at the server
   (one with your own model: tinderbox serve --model NAME=DIR).

   pip install tinker==0.38.0
   export TINKER_BASE_URL={base_url} TINKER_API_KEY={api_key}

   import tinker
   service = tinker.ServiceClient()
   training = service.create_lora_training_client(base_model=\"{model_name}\", rank=16).result()
   datum = tinker.Datum(
       model_input=tinker.ModelInput.from_ints([51, 43, 52, 61]),
       loss_fn_inputs={{\"target_tokens\": [43, 52, 61, 55], \"weights\": [0.0, 0.0, 0.0, 1.0]}},
   )
   for _ in range(10):
       result = training.forward_backward([datum], \"cross_entropy\")
       training.optim_step(tinker.AdamParams(learning_rate=1e-2)).result()
       print(result.result().metrics)
   sampler = training.save_weights_and_get_sampling_client().result()
   params = tinker.SamplingParams(max_tokens=4)
   answer = sampler.sample(datum.model_input, num_samples=1, sampling_params=params).result()
   print(answer.sequences[0].tokens)
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_ends_of_a_curve() {
        let rewards: Vec<f64> = (0..30).map(f64::from).collect();
        assert_eq!(ends(&rewards), (2.0, 27.0));
        assert_eq!(ends(&[0.5]), (0.5, 0.5));
    }

    #[test]
    fn the_farewell_names_this_server() {
        let text = farewell("http://127.0.0.1:8000", "tml-demo", "demo/adder");
        assert!(text.contains("TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-demo"));
        assert!(text.contains("base_model=\"demo/adder\""));
    }
}
