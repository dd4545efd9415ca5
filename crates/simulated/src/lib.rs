//! A CubeCL runtime whose GPU is the PTX interpreter: what a program launches on its
//! [`Client`] is lowered as CubeCL's CUDA runtime would lower it for a GPU of the chosen
//! architecture, compiled to PTX by NVRTC and executed, and checked, on the CPU. It needs the CUDA
//! toolkit's compilers and no GPU.
//!
//! The host code, the blueprint, the argument layout, the tensor maps and the PTX are those of a real launch;
//! only the machine is another. So kernels for GPUs that are not at hand run through the same
//! conformance problems as all others.
//!
//! ```no_run
//! use flashcube_lowering::Arch;
//! use flashcube_simulated::{Options, Simulated};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let gpu = Simulated::open(Options::new(Arch::Sm100a))?;
//! let bytes = gpu.client.create_from_slice(&[1, 2, 3, 4]);
//! assert_eq!(gpu.client.read_one(bytes)?.to_vec(), [1, 2, 3, 4]);
//! # Ok(())
//! # }
//! ```

mod buffers;
mod kernels;
mod server;

use std::fmt;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cubecl_core::client::Client;
use cubecl_core::device::DeviceId;
use flashcube_lowering::{Arch, Lowering, LoweringError};
use flashcube_ptx_sim::Coverage;
pub use flashcube_ptx_sim::Schedule;

use server::SimulatedServer;

/// A change to the PTX of a kernel before it runs: a fault planted on purpose.
pub type Edit = Box<dyn Fn(&str) -> String + Send>;

/// What is simulated, and how.
pub struct Options {
    /// The GPU.
    pub arch: Arch,
    /// Order of events.
    pub schedule: Schedule,
    /// Instructions that the warps of a cluster may execute together: beyond it a launch fails.
    pub max_instructions: u64,
    /// Change to every kernel's PTX.
    pub edit: Option<Edit>,
}

impl Options {
    /// `arch` at the latest legal moment, kernels as they are.
    pub fn new(arch: Arch) -> Self {
        Self {
            arch,
            schedule: Schedule::Latest,
            max_instructions: 1 << 28,
            edit: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("arch", &self.arch)
            .field("schedule", &self.schedule)
            .field("max_instructions", &self.max_instructions)
            .field("edit", &self.edit.is_some())
            .finish()
    }
}

/// Why a simulated GPU could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The compilers are missing.
    #[error(transparent)]
    Lowering(#[from] LoweringError),
    /// A process may open 65535 of them.
    #[error("no simulated GPU could be added: {0}")]
    Registry(String),
}

/// An open simulated GPU.
#[derive(Clone)]
pub struct Simulated {
    /// Launches run when they are made; a fault that the interpreter finds is the error of the
    /// next check or read of what the kernel was to write.
    pub client: Client,
    coverage: Arc<Mutex<Coverage>>,
}

impl fmt::Debug for Simulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulated")
            .field("client", &self.client.name())
            .finish()
    }
}

impl Simulated {
    /// A GPU with its own memory and kernels.
    ///
    /// # Errors
    /// [`OpenError`] when NVRTC is not found.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        static OPENED: AtomicU16 = AtomicU16::new(0);
        let lowering = Lowering::find()?;
        let id = DeviceId::new(
            options.arch.version() as u16,
            OPENED.fetch_add(1, Ordering::Relaxed),
        );
        let coverage = Arc::<Mutex<Coverage>>::default();
        let server = SimulatedServer::new(id, options, lowering, coverage.clone());
        let client = Client::try_init(id, server)
            .map_err(|error| OpenError::Registry(format!("{error:?}")))?;
        Ok(Self { client, coverage })
    }

    /// What ran so far, opcode by opcode.
    pub fn coverage(&self) -> Coverage {
        self.coverage
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
