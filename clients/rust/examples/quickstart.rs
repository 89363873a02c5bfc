//! Teaches a model one sentence and lets it say it: `cargo run -p tinderbox-client --example quickstart -- MODEL`.
//!
//! `TINKER_BASE_URL` and `TINKER_API_KEY` say where; token ids stand in for a tokenizer.

use tinderbox_client::types::datum::Datum;
use tinderbox_client::types::model_input::ModelInput;
use tinderbox_client::types::sampling::SamplingParams;
use tinderbox_client::types::training::{AdamParams, LoraConfig};
use tinderbox_client::{ClientOptions, Error, ServiceClient};

/// The lesson: the first two ids are the prompt, the rest is to be learnt.
const LESSON: [u32; 8] = [11, 22, 33, 44, 55, 66, 77, 88];

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example speaks to its user")]
async fn main() -> Result<(), Error> {
    let service = ServiceClient::connect(ClientOptions::from_env()).await?;
    let model = match std::env::args().nth(1) {
        Some(name) => name,
        None => {
            let served = service.get_server_capabilities().await?.supported_models.into_iter().next();
            served.and_then(|m| m.model_name).ok_or_else(|| Error::Usage("the server serves no model".into()))?
        }
    };
    let training = service.create_lora_training_client(&model, LoraConfig { rank: 8, ..Default::default() }).await?;

    for step in 0..20 {
        let weights = LESSON.iter().skip(1).enumerate().map(|(i, _)| if i == 0 { 0.0 } else { 1.0 });
        let datum = Datum::supervised(&LESSON, weights);
        // Both are on their way before the first result is awaited.
        let loss = training.forward_backward(vec![datum], "cross_entropy").await?;
        let stepped = training.optim_step(AdamParams { learning_rate: 1e-2, ..Default::default() }).await?;
        println!("step {step:2}  loss {:.3}", loss.await?.metrics["loss:sum"]);
        stepped.await?;
    }

    let sampler = training.save_weights_and_get_sampling_client().await?;
    let params = SamplingParams { max_tokens: Some(6), temperature: 0.0, ..Default::default() };
    let answer = sampler.sample(ModelInput::from_ints(LESSON[..2].iter().copied()), 1, params).await?;
    println!("after {:?} it says {:?}", &LESSON[..2], answer.sequences[0].tokens);
    Ok(())
}
