//! JSON bodies of every route, the first byte says of which: written again they stay the same, and checks keep their limits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tinderbox::api::fuzzing::{anthropic_count, anthropic_messages, json_body, openai_chat, openai_completion};
use tinderbox::command::{RunKind, SampleRequest, SampleSource, Stop};
use tinderbox::ids::{CheckpointKind, ModelId};
use tinderbox::loss::custom::compile;
use tinderbox::upload::adapter::expected_files;
use tinderbox::validate::metadata::bounded;
use tinderbox::validate::{custom_loss, runs, sampling, sdk_version, weights};
use tinderbox_client::types::lenient::parse_object;
use tinderbox_client::types::{
    checkpoints, custom_loss as wire_loss, futures, sampling as wire, search, service, sessions, training, uploads,
    weights as wire_weights,
};
use tinderbox_fuzz::{MAX_DATUMS, model, obeys};

const MAX_RANK: usize = 64;
const MAX_SAMPLES: usize = 16;
const MAX_CELLS: usize = 1 << 25;

fuzz_target!(|input: &[u8]| {
    let Some((kind, body)) = input.split_first() else { return };
    match kind % 33 {
        0 => drop(read::<sessions::CreateSessionRequest>(body).map(|r| session(&r))),
        1 => drop(read::<sessions::SessionHeartbeatRequest>(body)),
        2 => drop(read::<sessions::FinishSessionRequest>(body)),
        3 => drop(read::<sessions::AssignProjectRequest>(body)),
        4 => drop(read::<training::CreateModelRequest>(body).map(|r| create_model(&r))),
        5 => drop(read::<training::GetInfoRequest>(body)),
        6 => drop(read::<training::ForwardBackwardRequest>(body).map(forward_backward)),
        7 => drop(read::<training::ForwardRequest>(body).map(|r| forward_backward(r.into()))),
        8 => drop(read::<training::OptimStepRequest>(body).map(|r| optim_step(&r))),
        9 => drop(read::<training::UnloadModelRequest>(body)),
        10 => drop(read::<wire_weights::SaveWeightsRequest>(body).map(|r| {
            named(r.path.as_deref());
            lifetime(r.ttl_seconds);
            let _ = bounded("user_metadata", &r.user_metadata);
        })),
        11 => drop(read::<wire_weights::LoadWeightsRequest>(body).map(|r| path(&r.path))),
        12 => drop(read::<wire_weights::SaveWeightsForSamplerRequest>(body).map(|r| named(r.path.as_deref()))),
        13 => drop(read::<wire_weights::SaveWeightsExternalRequest>(body).map(|r| {
            lifetime(r.ttl_seconds);
            if let Ok(keys) = weights::recipients(r.age_encryption_recipients) {
                assert!(keys.len() <= 10);
            }
        })),
        14 => drop(read::<checkpoints::WeightsInfoRequest>(body).map(|r| path(&r.tinker_path))),
        15 => drop(read::<checkpoints::CopyWeightsRequest>(body).map(|r| path(&r.source_path))),
        16 => drop(read::<checkpoints::SetTtlRequest>(body).map(|r| lifetime(r.ttl_seconds.flatten()))),
        17 => drop(read::<uploads::ExternalWeightsUploadStartRequest>(body).map(|r| upload(&r))),
        18 => drop(read::<uploads::ExternalWeightsUploadFinishRequest>(body)),
        19 => drop(read::<wire::CreateSamplingSessionRequest>(body).map(|r| path(&r.model_path.unwrap_or_default()))),
        20 => drop(read::<wire::JoinSamplingSessionRequest>(body)),
        21 => drop(read::<wire::SampleRequest>(body).map(sample)),
        22 => drop(read::<futures::RetrieveFutureRequest>(body)),
        23 => drop(read::<futures::RetrieveFuturesRequest>(body)),
        24 => drop(read::<futures::CancelFutureRequest>(body)),
        25 => drop(read::<search::SessionSearchRequest>(body)),
        26 => drop(read::<search::CheckpointSearchRequest>(body)),
        27 => drop(read::<service::TelemetryRequest>(body)),
        28 => drop(read::<wire_loss::CreateCustomLossRequest>(body).map(|r| custom(&r))),
        29 => drop(openai_chat(body).map(|c| assert!(!c.messages.is_empty()))),
        30 => drop(openai_completion(body)),
        31 => drop(read::<service::ClientConfigRequest>(body)),
        _ => {
            if let Ok(conversation) = anthropic_messages(body) {
                assert!(!conversation.messages.is_empty());
                assert!(anthropic_count(body).is_ok(), "count_tokens takes what messages takes");
            }
        }
    }
});

/// A body as the server reads it. It can be written, and what was written reads the same.
fn read<T: Serialize + DeserializeOwned>(body: &[u8]) -> Option<T> {
    let request: T = parse_object(body).ok()?;
    let written = serde_json::to_vec(&request).expect("a request is JSON");
    let again: T = parse_object(&written).expect("what was written can be read");
    assert_eq!(String::from_utf8(serde_json::to_vec(&again).expect("JSON")), String::from_utf8(written));
    Some(request)
}

fn session(r: &sessions::CreateSessionRequest) {
    let _ = sdk_version::supported(&r.sdk_version);
    let _ = bounded("tags", &r.tags);
}

fn create_model(r: &training::CreateModelRequest) {
    if let Ok(RunKind::Lora(lora)) = runs::kind(r, MAX_RANK, 7) {
        assert!((1..=MAX_RANK).contains(&lora.rank));
        assert!(lora.train_attn || lora.train_mlp || lora.train_unembed, "nothing to train");
    }
}

fn forward_backward(r: training::ForwardBackwardRequest) {
    if let Ok(checked) = json_body(r, &model(), MAX_DATUMS) {
        obeys(&checked);
    }
}

/// Each setting as float32, in which the step is computed.
fn optim_step(r: &training::OptimStepRequest) {
    let Ok(p) = runs::adam(r.adam_params.as_ref(), r.optimizer_params.as_ref()) else { return };
    let single = |x: f64| x as f32;
    for x in [p.learning_rate, p.weight_decay, p.grad_clip_norm, p.learning_rate * p.weight_decay] {
        assert!(x >= 0.0 && !x.is_nan());
    }
    assert!([p.learning_rate, p.weight_decay, p.eps].into_iter().all(|x| single(x).is_finite()));
    assert!([p.beta1, p.beta2].into_iter().all(|b| (0.0..1.0).contains(&b)));
    assert!(single(p.eps) > 0.0);
}

fn named(name: Option<&str>) {
    let run = ModelId("s:train:0".into());
    if let Ok(path) = weights::new_path(&run, CheckpointKind::Training, name, 3) {
        assert_eq!(path.to_string().parse().ok(), Some(path));
    }
}

fn lifetime(seconds: Option<i64>) {
    if let Ok(Some(ttl)) = weights::ttl(seconds) {
        assert!((3600..=315_360_000).contains(&ttl.num_seconds()));
    }
}

fn path(text: &str) {
    if let Ok(path) = weights::training_path(text) {
        assert!(path.kind == CheckpointKind::Training && path.to_string() == text);
    }
    if let Ok(path) = weights::sampling_path(text) {
        assert!(path.kind != CheckpointKind::External && path.to_string() == text);
    }
}

fn upload(r: &uploads::ExternalWeightsUploadStartRequest) {
    let files: Vec<(String, u64)> = r.files.iter().map(|f| (f.name.clone(), f.size_bytes)).collect();
    if let Ok(sizes) = expected_files(&files) {
        assert!(sizes.len() == 2 && sizes.values().all(|n| *n > 0));
    }
}

fn custom(r: &wire_loss::CreateCustomLossRequest) {
    if let Ok(graph) = custom_loss::graph(r)
        && let Ok(program) = compile("loss", &graph)
    {
        assert!((1..=16).contains(&program.inputs.len()));
    }
}

fn sample(r: wire::SampleRequest) {
    let model = model();
    let source = SampleSource::Base;
    let Ok(checked) = sampling::sample(r, source, &model, MAX_SAMPLES, 7) else { return };
    let SampleRequest { prompt, num_samples, params, prompt_targets, .. } = &checked.request;
    assert!(!prompt.is_empty() && prompt.iter().all(|id| (*id as usize) < model.vocab_size));
    assert!((1..=MAX_SAMPLES).contains(num_samples));
    assert!(params.max_tokens == 1 || prompt.len() + params.max_tokens <= model.max_context_length);
    assert!(params.temperature.is_finite() && params.temperature >= 0.0);
    assert!(params.top_p > 0.0 && params.top_p <= 1.0);
    assert!(num_samples * params.max_tokens * (1 + checked.request.topk_sample_logprobs) <= MAX_CELLS);
    if let Stop::Strings(texts) = &params.stop {
        assert!(texts.iter().all(|t| !t.is_empty()) && texts.len() <= 64);
    }
    if let Some(last) = checked.request.prompt_logprobs_last_n {
        assert!((1..prompt.len()).contains(&last));
    }
    if let (Some(rows), Some(layout)) = (prompt_targets, &checked.targets) {
        assert!(rows.len() == prompt.len() - 1 && layout.rows == rows.len());
        assert!(rows.iter().all(|row| row.len() == layout.k));
        assert!(rows.iter().flatten().flatten().all(|id| (*id as usize) < model.vocab_size));
    }
}
