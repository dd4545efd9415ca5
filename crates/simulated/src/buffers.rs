//! The buffers of a simulated GPU, by the ids that CubeCL gives them.

use std::collections::HashMap;

use cubecl_core::environment::backtrace::BackTrace;
use cubecl_core::server::{BufferBinding, IoError, ServerError};
use cubecl_runtime::memory_management::{ManagedMemoryHandle, ManagedMemoryId};
use flashcube_ptx_sim::{BufferId, Memory};

struct Slot {
    handle: ManagedMemoryHandle,
    buffer: BufferId,
    /// Why the launch that was to write it did not.
    failure: Option<ServerError>,
}

/// Global memory and who owns which part of it.
#[derive(Default)]
pub(crate) struct Buffers {
    pub(crate) memory: Memory,
    slots: HashMap<ManagedMemoryId, Slot>,
}

impl Buffers {
    /// Memory for a new handle; that of handles which everybody dropped is given back.
    pub(crate) fn add(&mut self, handle: ManagedMemoryHandle, size: u64) {
        let memory = &mut self.memory;
        self.slots.retain(|_, slot| {
            let kept = !slot.handle.is_free();
            if !kept {
                memory.release(slot.buffer);
            }
            kept
        });
        let slot = Slot {
            buffer: self.memory.reserve(size as usize),
            handle: handle.clone(),
            failure: None,
        };
        self.slots.insert(handle.binding().id(), slot);
    }

    /// Buffer and first byte of a binding.
    pub(crate) fn find(&self, binding: &BufferBinding) -> Result<(BufferId, u64), ServerError> {
        match self.slots.get(&binding.memory.id()) {
            Some(slot) => Ok((slot.buffer, binding.offset_start.unwrap_or(0))),
            None => Err(ServerError::Io(IoError::NotFound {
                backtrace: BackTrace::capture(),
                reason: "the simulated GPU holds no such buffer".into(),
            })),
        }
    }

    /// The failure of whatever was to write one of `bindings`.
    pub(crate) fn check<'a>(
        &self,
        mut bindings: impl Iterator<Item = &'a BufferBinding>,
    ) -> Result<(), ServerError> {
        let failure = bindings.find_map(|binding| {
            let slot = self.slots.get(&binding.memory.id())?;
            slot.failure.clone()
        });
        failure.map_or(Ok(()), Err)
    }

    /// `bindings` are what a launch or a copy left them as.
    pub(crate) fn settle<'a>(
        &mut self,
        bindings: impl Iterator<Item = &'a BufferBinding>,
        failure: Option<&ServerError>,
    ) {
        for binding in bindings {
            if let Some(slot) = self.slots.get_mut(&binding.memory.id()) {
                slot.failure = failure.cloned();
            }
        }
    }
}
