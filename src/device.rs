//! The backend choice: the only place that names Burn's devices.

use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};

use crate::config::device::DeviceChoice;
use crate::error::{Error, Result};

/// The device for a setting.
///
/// # Errors
/// A user error when this build lacks the backend; it lists the ones it has.
pub fn open(choice: &DeviceChoice) -> Result<Device> {
    match choice {
        DeviceChoice::Auto => automatic(),
        #[cfg(feature = "flex")]
        DeviceChoice::Flex => Ok(Device::flex()),
        #[cfg(feature = "wgpu")]
        DeviceChoice::Wgpu => Ok(Device::wgpu(burn::tensor::DeviceKind::DefaultDevice)),
        #[cfg(feature = "vulkan")]
        DeviceChoice::Vulkan => Ok(Device::vulkan(burn::tensor::DeviceKind::DefaultDevice)),
        #[cfg(feature = "cuda")]
        DeviceChoice::Cuda(index) => Ok(Device::cuda(*index)),
        #[cfg(feature = "rocm")]
        DeviceChoice::Rocm(index) => Ok(Device::rocm(*index)),
        #[allow(unreachable_patterns, reason = "a build with every backend has no other choice left")]
        other => Err(Error::user(format!(
            "device {other}: this build has only {}; build with --features {} for it",
            available().join(", "),
            other.to_string().split(':').next().unwrap_or_default()
        ))),
    }
}

/// Opens the device and lets it compute something.
///
/// # Errors
/// As [`open`]; a device that is there and does not work may also panic, or never answer.
pub fn try_out(choice: &DeviceChoice) -> Result<Device> {
    let device = open(choice)?;
    // (2, 2) times its transpose.
    let x = Tensor::<2>::from_data(TensorData::new(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2]), &device);
    let product = x.clone().matmul(x.transpose()).into_data().convert::<f32>();
    match product.try_to_vec::<f32>() {
        Ok(values) if values == [5.0, 11.0, 11.0, 25.0] => Ok(device),
        computed => Err(Error::server(format!("device {choice} computes wrongly: {computed:?}"))),
    }
}

/// The backends of this build, best first.
pub fn available() -> Vec<&'static str> {
    [
        (cfg!(feature = "cuda"), "cuda"),
        (cfg!(feature = "rocm"), "rocm"),
        (cfg!(feature = "vulkan"), "vulkan"),
        (cfg!(feature = "wgpu"), "wgpu"),
        (cfg!(feature = "flex"), "flex"),
    ]
    .into_iter()
    .filter_map(|(has, name)| has.then_some(name))
    .collect()
}

/// The first of: a GPU whose kernel driver is loaded, the CPU, whatever else this build has. A Vulkan driver may well
/// compute on the CPU, more slowly than our own kernels there, so `wgpu` and `vulkan` come last.
fn automatic() -> Result<Device> {
    let order = [
        (Path::new("/dev/nvidiactl").exists(), DeviceChoice::Cuda(0)),
        (Path::new("/dev/kfd").exists(), DeviceChoice::Rocm(0)),
        (true, DeviceChoice::Flex),
        (true, DeviceChoice::Vulkan),
        (true, DeviceChoice::Wgpu),
    ];
    let mut there = order.into_iter().filter_map(|(there, choice)| there.then_some(choice));
    there.find_map(|choice| open(&choice).ok()).ok_or_else(|| Error::user("this build has no backend for this machine"))
}
