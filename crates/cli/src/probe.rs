//! What a backend offers on this machine; each asked in a process of its own, since a process can
//! hold one Vulkan driver and a broken driver may take its process down.

use std::env;
use std::process::{Command, Stdio};

use flashcube::DType;
use flashcube_lowering::kernels;
use serde::{Deserialize, Serialize};

use crate::backend::{BackendName, Device};
use crate::failure::{Failure, Result};

/// One backend on this machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BackendReport {
    pub(crate) backend: BackendName,
    #[serde(flatten)]
    pub(crate) state: State,
}

/// Whether a backend is there.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum State {
    /// It opened.
    Present(Box<DeviceReport>),
    /// It did not.
    Missing { reason: String, install: String },
}

/// A device that opened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DeviceReport {
    pub(crate) device: String,
    pub(crate) driver: String,
    pub(crate) software: bool,
    pub(crate) limits: Limits,
    /// What selection gives each listed kernel here.
    pub(crate) kernels: Vec<Choice>,
}

/// The limits that selection looks at.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Limits {
    pub(crate) dtypes: Vec<String>,
    pub(crate) plane: (u32, u32),
    pub(crate) units_per_cube: u32,
    pub(crate) shared_memory_bytes: usize,
    pub(crate) storage_buffers: u32,
    pub(crate) cube_count: (u32, u32, u32),
    pub(crate) address_64: bool,
    pub(crate) divergent_barriers: bool,
}

/// The blueprint a kernel gets, or the limit that forbids it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Choice {
    pub(crate) kernel: String,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
}

/// What selection says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// It would run this.
    Blueprint(String),
    /// It cannot.
    NotAvailable(String),
}

impl BackendReport {
    /// Opens the backend in this process, which must have been prepared for it.
    pub(crate) fn here(backend: BackendName) -> Self {
        let state = match backend.open() {
            Ok(device) => State::Present(Box::new(DeviceReport::of(&device))),
            Err(failure) => State::Missing {
                reason: failure.to_string(),
                install: backend.install_hint().to_owned(),
            },
        };
        Self { backend, state }
    }

    /// Asks a child process.
    ///
    /// # Errors
    /// [`Failure::Failed`] when no child can be started.
    pub(crate) fn elsewhere(backend: BackendName) -> Result<Self> {
        let output = own_command()?
            .args(["doctor", "--json", "--backend", &backend.to_string()])
            .stderr(Stdio::piped())
            .output()
            .map_err(|e| Failure::failed(format!("cannot start a process of itself: {e}")))?;
        let report: Option<crate::doctor::DoctorReport> =
            serde_json::from_slice(&output.stdout).ok();
        let answer = report.and_then(|report| report.backends.into_iter().next());
        Ok(answer.unwrap_or_else(|| {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let last = stderr.lines().last().unwrap_or("no message").to_owned();
            Self {
                backend,
                state: State::Missing {
                    reason: format!("opening it ended the process ({}): {last}", output.status),
                    install: backend.install_hint().to_owned(),
                },
            }
        }))
    }

    /// The device, if there is one.
    pub(crate) fn device(&self) -> Option<&DeviceReport> {
        match &self.state {
            State::Present(device) => Some(device),
            State::Missing { .. } => None,
        }
    }
}

/// This program again.
///
/// # Errors
/// [`Failure::Failed`] when the system does not say where it lies.
pub(crate) fn own_command() -> Result<Command> {
    env::current_exe()
        .map(Command::new)
        .map_err(|e| Failure::failed(format!("cannot find the program's own file: {e}")))
}

impl DeviceReport {
    fn of(device: &Device) -> Self {
        let caps = &device.caps;
        let driver = match device.backend.driver().and_then(|driver| driver.manifest()) {
            Some(manifest) => manifest.display().to_string(),
            None => device.client.name().to_owned(),
        };
        let choice = |kernel: flashcube_lowering::ListedKernel| Choice {
            outcome: match kernel.problem.select(caps) {
                Ok(blueprint) => Outcome::Blueprint(blueprint.to_string()),
                Err(error) => Outcome::NotAvailable(error.to_string()),
            },
            kernel: kernel.name,
        };
        Self {
            device: device.adapter().to_owned(),
            driver,
            software: device.is_software(),
            limits: Limits {
                dtypes: caps.dtypes.iter().map(DType::to_string).collect(),
                plane: caps.plane,
                units_per_cube: caps.units_per_cube,
                shared_memory_bytes: caps.shared_memory,
                storage_buffers: caps.bindings,
                cube_count: caps.cube_count,
                address_64: caps.address_64,
                divergent_barriers: caps.divergent_barriers,
            },
            kernels: kernels().into_iter().map(choice).collect(),
        }
    }
}
