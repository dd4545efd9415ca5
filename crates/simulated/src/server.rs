//! The device service: every call is done when it returns.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use cubecl_core::device::{DeviceId, DeviceService, ServerUtilitiesHandle, ServiceId};
use cubecl_core::environment::backtrace::BackTrace;
use cubecl_core::environment::bytes::Bytes;
use cubecl_core::environment::future::DynFut;
use cubecl_core::environment::stream::StreamId;
use cubecl_core::environment::time::Instant;
use cubecl_core::profile::ProfileDuration;
use cubecl_core::server::{
    BufferBinding, CopyDescriptor, IoError, KernelArguments, LaunchError, ProfileError,
    ProfilingToken, Server, ServerCommunication, ServerError, ServerStorage, ServerUtilities,
};
use cubecl_core::{CubeCount, CubeKernel, StreamMemoryReport};
use cubecl_runtime::dry_run::LaunchMode;
use cubecl_runtime::id::KernelId;
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::{ManagedMemoryHandle, MemoryAllocationMode};
use cubecl_runtime::storage::{ComputeStorage, ManagedResource};
use cubecl_server::allocator::{ContiguousMemoryLayoutPolicy, Pitch};
use cubecl_server::storage::BytesStorage;
use flashcube_lowering::{Arch, Lowering, properties, target_properties};
use flashcube_ptx_sim::{Coverage, Launch, run};

use crate::Options;
use crate::buffers::Buffers;
use crate::kernels::Loaded;

/// Alignment of tensors that share a buffer, as on CUDA.
const ALIGNMENT: usize = 512;

pub(crate) struct SimulatedServer {
    options: Options,
    /// Why there are no compilers, if there are none.
    lowering: Result<Lowering, String>,
    utilities: Arc<ServerUtilities>,
    kernels: HashMap<KernelId, Loaded>,
    buffers: Buffers,
    coverage: Arc<Mutex<Coverage>>,
    profiles: HashMap<u64, Instant>,
}

impl fmt::Debug for SimulatedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedServer")
            .field("options", &self.options)
            .field("kernels", &self.kernels.len())
            .finish()
    }
}

impl SimulatedServer {
    pub(crate) fn new(
        id: DeviceId,
        options: Options,
        lowering: Lowering,
        coverage: Arc<Mutex<Coverage>>,
    ) -> Self {
        Self {
            lowering: Ok(lowering),
            coverage,
            ..Self::bare(id, options)
        }
    }

    fn bare(id: DeviceId, options: Options) -> Self {
        let mut device = (*properties(options.arch)).clone();
        device.identity.name = format!("simulated {}", options.arch);
        let (utilities, _captures) = ServerUtilities::init(
            ServiceId::of::<Self>(id),
            "cuda (simulated)",
            device,
            (*target_properties()).clone(),
            Arc::new(ServerLogger::default()),
            ContiguousMemoryLayoutPolicy::new(ALIGNMENT),
        );
        Self {
            options,
            lowering: Err("no compilers were given".into()),
            utilities: Arc::new(utilities),
            kernels: HashMap::new(),
            buffers: Buffers::default(),
            coverage: Arc::default(),
            profiles: HashMap::new(),
        }
    }

    /// Compiles a kernel that is not known yet.
    fn load(&mut self, id: &KernelId, kernel: &dyn CubeKernel) -> Result<(), ServerError> {
        if self.kernels.contains_key(id) {
            return Ok(());
        }
        let lowering = self
            .lowering
            .as_ref()
            .map_err(|reason| generic(reason.clone()))?;
        let Options { arch, edit, .. } = &self.options;
        let loaded = Loaded::compile(kernel, *arch, lowering, edit.as_ref())?;
        self.kernels.insert(id.clone(), loaded);
        Ok(())
    }

    fn execute(
        &mut self,
        id: &KernelId,
        count: &CubeCount,
        given: &KernelArguments,
    ) -> Result<(), ServerError> {
        self.buffers.check(given.buffers_read(None))?;
        let grid = self.grid(count)?;
        let Some(loaded) = self.kernels.get(id) else {
            return Err(generic("the kernel was not compiled".into()));
        };
        let args = loaded.arguments(given, id.address_type, &mut self.buffers)?;
        let cube = [id.cube_dim.x, id.cube_dim.y, id.cube_dim.z];
        let mut launch = Launch::new(grid, cube, args);
        launch.cluster = loaded.kernel.cluster().unwrap_or([1; 3]);
        launch.dynamic_shared = loaded.dynamic_shared;
        launch.schedule = self.options.schedule;
        launch.max_instructions = self.options.max_instructions;
        let ran = run(&loaded.kernel, &launch, &self.buffers.memory).map_err(|error| {
            ServerError::Launch(LaunchError::Unknown {
                reason: format!("{error} {:?}", error.fault()),
                backtrace: BackTrace::capture(),
            })
        })?;
        let mut coverage = self.coverage.lock().unwrap_or_else(PoisonError::into_inner);
        coverage.merge(&ran);
        Ok(())
    }

    fn grid(&self, count: &CubeCount) -> Result<[u32; 3], ServerError> {
        match count {
            CubeCount::Static(x, y, z) => Ok([*x, *y, *z]),
            CubeCount::Dynamic(binding) => {
                let bytes = self.bytes(binding)?;
                let word = |i: usize| match bytes.get(4 * i..4 * i + 4) {
                    Some(&[a, b, c, d]) => Ok(u32::from_le_bytes([a, b, c, d])),
                    _ => Err(generic("a dynamic cube count has three words".into())),
                };
                Ok([word(0)?, word(1)?, word(2)?])
            }
        }
    }

    /// What a binding names.
    fn bytes(&self, binding: &BufferBinding) -> Result<Vec<u8>, ServerError> {
        let (buffer, start) = self.buffers.find(binding)?;
        let mut bytes = self.buffers.memory.contents(buffer);
        bytes.truncate(binding.range().end as usize);
        bytes.drain(..(start as usize).min(bytes.len()));
        Ok(bytes)
    }

    fn copy_out(&self, from: &CopyDescriptor) -> Result<Bytes, ServerError> {
        let bytes = self.bytes(&from.handle)?;
        let packed = match Pitch::of(&from.shape, &from.strides, from.elem_size) {
            None => {
                let size = from.shape.iter().product::<usize>() * from.elem_size;
                bytes.into_iter().take(size).collect()
            }
            Some(pitch) => bytes
                .chunks(pitch.stride_bytes)
                .take(pitch.height)
                .flat_map(|row| row.iter().take(pitch.width_bytes).copied())
                .collect(),
        };
        Ok(Bytes::from_bytes_vec(packed))
    }

    fn copy_in(&mut self, to: &CopyDescriptor, data: &[u8]) -> Result<(), ServerError> {
        let (buffer, start) = self.buffers.find(&to.handle)?;
        let (width, stride) = match Pitch::of(&to.shape, &to.strides, to.elem_size) {
            None => (data.len().max(1), 0),
            Some(pitch) => (pitch.width_bytes, pitch.stride_bytes),
        };
        for (row, part) in data.chunks(width).enumerate() {
            let at = start + (row * stride) as u64;
            let written = self.buffers.memory.write(buffer, at, part);
            written.map_err(|error| generic(error.to_string()))?;
        }
        Ok(())
    }
}

fn generic(reason: String) -> ServerError {
    ServerError::Generic {
        reason,
        backtrace: BackTrace::capture(),
    }
}

impl DeviceService for SimulatedServer {
    /// A device that nobody opened: it computes nothing, since it was given no compilers.
    fn init(id: DeviceId) -> Self {
        let named = |arch: &Arch| arch.version() == u32::from(id.type_id);
        let arch = Arch::ALL.into_iter().find(named).unwrap_or(Arch::Sm80);
        Self::bare(id, Options::new(arch))
    }
    fn utilities(&self) -> ServerUtilitiesHandle {
        self.utilities.clone()
    }
}

impl ServerCommunication for SimulatedServer {}

impl ServerStorage for SimulatedServer {
    type Storage = BytesStorage;

    fn get_resource(
        &mut self,
        _binding: BufferBinding,
        _stream_id: StreamId,
    ) -> Result<ManagedResource<<BytesStorage as ComputeStorage>::Resource>, ServerError> {
        Err(ServerError::Io(IoError::UnsupportedIoOperation {
            backtrace: BackTrace::capture(),
        }))
    }
}

impl Server for SimulatedServer {
    fn initialize_memory(
        &mut self,
        memory: ManagedMemoryHandle,
        size: u64,
        _stream_id: StreamId,
    ) -> Result<(), ServerError> {
        self.buffers.add(memory, size);
        Ok(())
    }

    fn logger(&self) -> Arc<ServerLogger> {
        self.utilities.logger.clone()
    }

    fn utilities(&self) -> Arc<ServerUtilities> {
        self.utilities.clone()
    }

    fn read(
        &mut self,
        descriptors: Vec<CopyDescriptor>,
        _stream_id: StreamId,
    ) -> DynFut<Result<Vec<Bytes>, ServerError>> {
        let checked = self.buffers.check(descriptors.iter().map(|d| &d.handle));
        let read = checked.and_then(|()| descriptors.iter().map(|d| self.copy_out(d)).collect());
        Box::pin(async move { read })
    }

    fn write(&mut self, descriptors: Vec<(CopyDescriptor, Bytes)>, _stream_id: StreamId) {
        for (to, data) in descriptors {
            let failure = self.copy_in(&to, &data).err();
            self.buffers
                .settle([&to.handle].into_iter(), failure.as_ref());
        }
    }

    fn sync(
        &mut self,
        handles: Vec<BufferBinding>,
        stream_id: StreamId,
    ) -> DynFut<Result<(), ServerError>> {
        let checked = self.check(handles, stream_id);
        Box::pin(async move { checked })
    }

    fn check(
        &mut self,
        handles: Vec<BufferBinding>,
        _stream_id: StreamId,
    ) -> Result<(), ServerError> {
        self.buffers.check(handles.iter())
    }

    unsafe fn launch(
        &mut self,
        kernel: Box<dyn CubeKernel>,
        count: CubeCount,
        bindings: KernelArguments,
        _stream_id: StreamId,
        launch_mode: LaunchMode,
    ) {
        let id = kernel.id();
        let loaded = self.load(&id, &*kernel);
        if launch_mode.is_skipped() {
            return;
        }
        let ran = match count.is_empty() {
            true => loaded,
            false => loaded.and_then(|()| self.execute(&id, &count, &bindings)),
        };
        self.buffers
            .settle(bindings.buffers_written(None), ran.err().as_ref());
    }

    fn flush(&mut self, _stream_id: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn memory_report(&mut self, _stream_id: StreamId) -> Option<StreamMemoryReport> {
        None
    }

    fn memory_cleanup(&mut self, _stream_id: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    /// The time that the simulation takes.
    fn start_profile(&mut self, _stream_id: StreamId) -> Result<ProfilingToken, ServerError> {
        let id = self.profiles.keys().max().map_or(0, |last| last + 1);
        self.profiles.insert(id, Instant::now());
        Ok(ProfilingToken { id })
    }

    fn end_profile(
        &mut self,
        _stream_id: StreamId,
        token: ProfilingToken,
    ) -> Result<ProfileDuration, ProfileError> {
        match self.profiles.remove(&token.id) {
            Some(start) => Ok(ProfileDuration::new_system_time(start, Instant::now())),
            None => Err(ProfileError::NotRegistered {
                backtrace: BackTrace::capture(),
            }),
        }
    }

    fn abandon_profile(&mut self, _stream_id: StreamId, token: ProfilingToken) {
        self.profiles.remove(&token.id);
    }

    fn allocation_mode(&mut self, _mode: MemoryAllocationMode, _stream_id: StreamId) {}
}
