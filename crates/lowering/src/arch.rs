//! The GPU architectures kernels are lowered for.

use std::{fmt, str::FromStr};

use serde::Serialize;

use crate::LoweringError;

/// A CUDA architecture, named as NVRTC and ptxas name it.
///
/// The `a` variants carry the architecture-specific instructions (wgmma, tcgen05, block-scaled MMA).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub enum Arch {
    /// A100.
    Sm80,
    /// RTX 30, A10, A40.
    Sm86,
    /// RTX 40, L4, L40.
    Sm89,
    /// H100, H200.
    Sm90a,
    /// B200, GB200.
    Sm100a,
    /// B300, GB300.
    Sm103a,
    /// RTX 50, RTX PRO Blackwell.
    Sm120a,
}

impl Arch {
    /// Every architecture, oldest first.
    pub const ALL: [Arch; 7] = [
        Arch::Sm80,
        Arch::Sm86,
        Arch::Sm89,
        Arch::Sm90a,
        Arch::Sm100a,
        Arch::Sm103a,
        Arch::Sm120a,
    ];

    /// Compute capability as ten times major plus minor, e.g. 90.
    pub fn version(self) -> u32 {
        match self {
            Arch::Sm80 => 80,
            Arch::Sm86 => 86,
            Arch::Sm89 => 89,
            Arch::Sm90a => 90,
            Arch::Sm100a => 100,
            Arch::Sm103a => 103,
            Arch::Sm120a => 120,
        }
    }

    /// The most shared memory one cube can opt into, in bytes (CUDA C++ Programming Guide, table of compute
    /// capabilities: 163, 99 or 227 KiB).
    pub fn max_smem_bytes(self) -> usize {
        match self {
            Arch::Sm80 => 163 * 1024,
            Arch::Sm86 | Arch::Sm89 | Arch::Sm120a => 99 * 1024,
            Arch::Sm90a | Arch::Sm100a | Arch::Sm103a => 227 * 1024,
        }
    }

    /// Streaming multiprocessors of the usual card of this architecture (A100, RTX 3090, RTX 4090, H100 SXM, B200,
    /// B300, RTX 5090).
    pub fn multiprocessors(self) -> u32 {
        match self {
            Arch::Sm80 => 108,
            Arch::Sm86 => 82,
            Arch::Sm89 => 128,
            Arch::Sm90a => 132,
            Arch::Sm100a => 148,
            Arch::Sm103a => 160,
            Arch::Sm120a => 170,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = if self.version() >= 90 { "a" } else { "" };
        f.pad(&format!("sm_{}{suffix}", self.version()))
    }
}

impl From<Arch> for String {
    fn from(arch: Arch) -> String {
        arch.to_string()
    }
}

impl FromStr for Arch {
    type Err = LoweringError;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        Arch::ALL
            .into_iter()
            .find(|arch| arch.to_string() == given)
            .ok_or_else(|| LoweringError::UnknownArch {
                given: given.to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back() {
        for arch in Arch::ALL {
            assert_eq!(arch.to_string().parse::<Arch>().unwrap(), arch);
            assert_eq!(serde_json::to_string(&arch).unwrap(), format!("\"{arch}\""));
        }
    }

    #[test]
    fn unknown_name_lists_the_known_ones() {
        let error = "sm_90".parse::<Arch>().unwrap_err().to_string();
        assert!(error.contains("\"sm_90\""), "{error}");
        assert!(
            error.contains("sm_90a") && error.contains("sm_120a"),
            "{error}"
        );
    }
}
