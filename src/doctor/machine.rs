//! The device, memory and file descriptors.

use std::time::{Duration, Instant};

use super::line::Line;
use super::patience::within;
use crate::config::device::DeviceChoice;
use crate::device;
use crate::engine::memory;
use crate::kernels;

const DEVICE: &str = "device";
const MEMORY: &str = "memory";
/// Below it not even a small model can be trained.
const MEMORY_LEAST: u64 = 256 << 20;
const MEMORY_GOOD: u64 = 4 << 30;
/// As many as 8192 long polls, files and the database take.
const DESCRIPTORS_GOOD: u64 = 10_000;
const DESCRIPTORS_LEAST: u64 = 256;

pub fn check(choice: DeviceChoice, limit: Duration) -> Vec<Line> {
    let backends = device::available().join(", ");
    let start = Instant::now();
    let computes = within(limit, move || device::try_out(&choice));
    let computes = match computes {
        Ok(Ok(device)) => Line::pass(DEVICE, "computes", kernels::describe(&device)),
        Ok(Err(e)) => {
            Line::fail(DEVICE, "computes", e.message, "give another --device, or install a build that has it")
        }
        Err(why) => Line::fail(
            DEVICE,
            "computes",
            format!("{choice}: {why}"),
            "look at the device's driver (nvidia-smi, rocminfo, vulkaninfo), or give --device cpu",
        ),
    };
    vec![
        Line::pass(DEVICE, "backends", format!("this build has {backends}")),
        computes.since(start),
        memory(),
        descriptors(),
    ]
}

fn memory() -> Line {
    let bytes = memory::available();
    let found = format!("{:.1} GiB available", bytes as f64 / f64::from(1 << 30));
    match bytes < MEMORY_LEAST {
        true => Line::fail(MEMORY, "available", found, "end other programs, or take a larger machine"),
        false => Line::pass(MEMORY, "available", found)
            .better(bytes < MEMORY_GOOD, "little: a run takes 24 bytes for each value it trains, beside the model"),
    }
}

fn descriptors() -> Line {
    let (area, check) = ("descriptors", "limit");
    let advice = "raise the hard limit (ulimit -Hn, LimitNOFILE= of systemd) before thousands of clients connect";
    match rlimit::getrlimit(rlimit::Resource::NOFILE) {
        Ok((_, hard)) if hard < DESCRIPTORS_LEAST => Line::fail(area, check, format!("{hard} open files"), advice),
        // The server raises its own limit up to the hard one.
        Ok((_, hard)) => {
            let found = if hard == rlimit::INFINITY { "no limit".into() } else { format!("{hard} open files") };
            Line::pass(area, check, found).better(hard < DESCRIPTORS_GOOD, advice)
        }
        Err(e) => Line::skip(area, check, e.to_string()),
    }
}
