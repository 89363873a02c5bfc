//! What computes, and the type base weights are kept in: names only, `crate::device` knows the backends.

use std::fmt;
use std::str::FromStr;

use super::env::Env;
use super::given;
use crate::error::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    pub choice: DeviceChoice,
    pub dtype: Dtype,
}

/// What the user asked for; whether this binary has it is decided where the backend is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    Auto,
    /// The CPU.
    Flex,
    Wgpu,
    Vulkan,
    /// A GPU by its number, from 0.
    Cuda(usize),
    Rocm(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    F32,
    Bf16,
}

impl Device {
    pub fn new(choice: Option<DeviceChoice>, dtype: Option<Dtype>, env: &Env) -> Result<Self> {
        Ok(Self {
            choice: given(choice, env, "TINDERBOX_DEVICE")?.unwrap_or(DeviceChoice::Auto),
            dtype: given(dtype, env, "TINDERBOX_DTYPE")?.unwrap_or(Dtype::F32),
        })
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let bad =
            || Error::user(format!("unknown device {s:?}: give auto, cpu (or flex), wgpu, vulkan, cuda:N or rocm:N"));
        let (kind, number) = match s.split_once(':') {
            Some((kind, digits)) if !digits.starts_with('+') => (kind, Some(digits.parse().map_err(|_| bad())?)),
            Some(_) => return Err(bad()),
            None => (s, None),
        };
        match (kind, number) {
            ("auto", None) => Ok(Self::Auto),
            ("cpu" | "flex", None) => Ok(Self::Flex),
            ("wgpu", None) => Ok(Self::Wgpu),
            ("vulkan", None) => Ok(Self::Vulkan),
            ("cuda", n) => Ok(Self::Cuda(n.unwrap_or(0))),
            ("rocm", n) => Ok(Self::Rocm(n.unwrap_or(0))),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Flex => f.write_str("flex"),
            Self::Wgpu => f.write_str("wgpu"),
            Self::Vulkan => f.write_str("vulkan"),
            Self::Cuda(n) => write!(f, "cuda:{n}"),
            Self::Rocm(n) => write!(f, "rocm:{n}"),
        }
    }
}

impl FromStr for Dtype {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        match s {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            _ => Err(Error::user(format!("unknown dtype {s:?}: give f32 or bf16"))),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accepted_devices() {
        for s in ["auto", "flex", "wgpu", "vulkan", "cuda:0", "cuda:3", "rocm:0"] {
            assert_eq!(s.parse::<DeviceChoice>().unwrap().to_string(), s);
        }
        assert_eq!("cuda".parse::<DeviceChoice>().unwrap(), DeviceChoice::Cuda(0));
    }

    #[test]
    fn anything_else_lists_the_accepted_forms() {
        assert_eq!("cpu".parse::<DeviceChoice>().unwrap(), DeviceChoice::Flex);
        for s in ["", "CPU", "CUDA:0", "cuda:", "cuda:x", "cuda:-1", "cuda:+1", "flex:0", "auto:1"] {
            let message = s.parse::<DeviceChoice>().unwrap_err().message;
            assert!(message.contains(&format!("{s:?}")) && message.contains("rocm:N"), "{message}");
        }
        assert!("fp32".parse::<Dtype>().unwrap_err().message.contains("f32 or bf16"));
    }
}
