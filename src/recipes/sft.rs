//! Supervised fine-tuning: cross-entropy on the right answers until the loss is low enough, then save.

use std::io::Write;

use anyhow::Context;
use tinderbox_client::TrainingClient;
use tinderbox_client::types::datum::Datum;
use tinderbox_client::types::training::AdamParams;

use super::addition::{Problem, Text};
use super::progress::Progress;

pub struct Config {
    pub learning_rate: f64,
    /// Training stops when the loss per answer token (nats) is below this.
    pub target_loss: f64,
    /// And fails when it is not after so many steps.
    pub steps_max: usize,
    /// A line is shown every so many steps.
    pub report_every: usize,
    /// Name of the saved state.
    pub save_as: String,
}

/// The `tinker://` path of the saved state. Every step sees every problem.
pub async fn run(
    training: &TrainingClient,
    text: &Text,
    problems: &[Problem],
    config: &Config,
    out: &mut (impl Write + Send),
) -> anyhow::Result<String> {
    let data = problems.iter().map(|&p| datum(text, p)).collect::<anyhow::Result<Vec<Datum>>>()?;
    let answer_tokens: f64 = data.iter().map(weight_sum).sum();
    let adam = AdamParams { learning_rate: config.learning_rate, ..Default::default() };
    // The loss of a model that knows nothing is about ln(vocabulary).
    let mut progress = Progress::new(out, "loss", 6.0);

    for step in 1..=config.steps_max {
        // Both requests are on their way before the first result is there; the server keeps their order.
        let output = training.forward_backward(data.clone(), "cross_entropy").await?;
        let stepped = training.optim_step(adam.clone()).await?;
        let output = output.await?;
        stepped.await?;

        // The service sums over all tokens; what is shown is the mean.
        let loss = output.metrics.get("loss:sum").context("the server reports no loss:sum")? / answer_tokens;
        let done = loss < config.target_loss;
        if done || step == 1 || step % config.report_every == 0 {
            progress.step(step, loss, "")?;
        }
        if done {
            progress.summary()?;
            return Ok(training.save_state(&config.save_as, None).await?.await?.path);
        }
    }
    anyhow::bail!("after {} steps the loss is still above {}", config.steps_max, config.target_loss)
}

/// Question and answer as one sequence; only the answer's tokens count.
fn datum(text: &Text, problem: Problem) -> anyhow::Result<Datum> {
    let question = text.encode(&problem.question())?;
    let answer = text.encode(&problem.answer())?;
    // Weights stand at the targets: the last question token predicts the first answer token.
    let unseen = std::iter::repeat_n(0.0, question.len() - 1);
    let weights: Vec<f32> = unseen.chain(std::iter::repeat_n(1.0, answer.len())).collect();
    Ok(Datum::supervised(&[question, answer].concat(), weights))
}

fn weight_sum(datum: &Datum) -> f64 {
    let weights = datum.loss_fn_inputs["weights"].values.clone().into_f32();
    weights.into_iter().map(f64::from).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answer_counts() {
        let dir = tempfile::tempdir().unwrap();
        super::super::demo_model::write(dir.path(), 0).unwrap();
        let text = Text::open(dir.path()).unwrap();
        let d = datum(&text, Problem { a: 3, b: 4 }).unwrap();
        // 3 + 4 = 7 \n
        assert_eq!(d.model_input.to_ints().unwrap(), [51, 43, 52, 61, 55]);
        assert_eq!(d.loss_fn_inputs["target_tokens"].values.clone().into_i64().unwrap(), [43, 52, 61, 55, 10]);
        assert_eq!(d.loss_fn_inputs["weights"].values.clone().into_f32(), [0.0, 0.0, 0.0, 1.0, 1.0]);
        assert_eq!(weight_sum(&d), 2.0);
    }
}
