//! The backend choice: the only place that names Burn's devices.

use burn::tensor::Device;

use crate::config::device::DeviceChoice;
use crate::error::{Error, Result};

/// The device for a setting.
///
/// # Errors
/// A user error when this build lacks the backend; it lists the ones it has.
pub fn open(choice: &DeviceChoice) -> Result<Device> {
    match choice {
        DeviceChoice::Auto => Ok(automatic()),
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
        other => Err(Error::user(format!("device {other}: this build has only {}", available().join(", ")))),
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

/// A GPU with a driver of its own, else the CPU. A Vulkan driver that computes on the CPU is slower than our own
/// kernels there, so `wgpu` and `vulkan` are taken only when asked for by name.
fn automatic() -> Device {
    #[cfg(feature = "cuda")]
    return Device::cuda(0);
    #[cfg(all(feature = "rocm", not(feature = "cuda")))]
    return Device::rocm(0);
    #[cfg(all(feature = "flex", not(any(feature = "cuda", feature = "rocm"))))]
    return Device::flex();
    #[cfg(not(any(feature = "flex", feature = "cuda", feature = "rocm")))]
    return {
        #[cfg(feature = "vulkan")]
        {
            Device::vulkan(burn::tensor::DeviceKind::DefaultDevice)
        }
        #[cfg(all(feature = "wgpu", not(feature = "vulkan")))]
        {
            Device::wgpu(burn::tensor::DeviceKind::DefaultDevice)
        }
    };
}
