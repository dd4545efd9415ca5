//! Faults.

/// What PTX forbids or leaves undefined, as found at run time.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// An address outside every allocation.
    #[error("{bytes} bytes at {space} address {address:#x} are outside: {reason}")]
    OutOfBounds {
        /// State space.
        space: &'static str,
        /// Address or offset.
        address: u64,
        /// Bytes.
        bytes: usize,
        /// What was there.
        reason: String,
    },
    /// An address that is not a multiple of what the instruction wants.
    #[error("{space} address {address:#x} is not a multiple of {align}")]
    Misaligned {
        /// State space.
        space: &'static str,
        /// Address or offset.
        address: u64,
        /// Wanted alignment.
        align: usize,
    },
    /// A value that nobody wrote.
    #[error("{what} is read before it is written")]
    Uninitialised {
        /// Register or address.
        what: String,
    },
    /// A register that an unfinished instruction reads or writes.
    #[error("register {register} belongs to an unfinished {owner}")]
    RegisterOwned {
        /// Register.
        register: String,
        /// Instruction.
        owner: &'static str,
    },
    /// Memory that an unfinished instruction reads or writes.
    #[error("{space} address {address:#x} belongs to an unfinished {owner}")]
    MemoryOwned {
        /// State space.
        space: &'static str,
        /// Address.
        address: u64,
        /// Instruction.
        owner: &'static str,
    },
    /// Two accesses, one of them a write, that nothing orders.
    #[error("{access} of {space} address {address:#x} is not ordered after the {earlier}")]
    Race {
        /// State space.
        space: &'static str,
        /// Address.
        address: u64,
        /// This access.
        access: &'static str,
        /// The earlier one and who made it.
        earlier: String,
    },
    /// An asynchronous access to what ordinary stores wrote, without a proxy fence.
    #[error(
        "shared address {address:#x}, written by ordinary stores, is accessed asynchronously without fence.proxy.async"
    )]
    MissingProxyFence {
        /// Address.
        address: u64,
    },
    /// A wgmma uses registers that changed since the last wgmma.fence.
    #[error("register {register} changed after the last wgmma.fence")]
    MissingWgmmaFence {
        /// Register.
        register: String,
    },
    /// A collective instruction that not all of its lanes execute.
    #[error("lanes {missing:#010x} do not take part: {why}")]
    Divergent {
        /// Mask of the missing lanes.
        missing: u32,
        /// Why they never will.
        why: &'static str,
    },
    /// Misuse of a named barrier.
    #[error("barrier {id}: {problem}")]
    Barrier {
        /// Barrier.
        id: u32,
        /// What is wrong.
        problem: String,
    },
    /// Misuse of an mbarrier.
    #[error("mbarrier at {address:#x}: {problem}")]
    Mbarrier {
        /// Shared address.
        address: u32,
        /// What is wrong.
        problem: String,
    },
    /// A tensor map, a box or coordinates that the instruction does not take.
    #[error("tensor map: {problem}")]
    TensorMap {
        /// What is wrong.
        problem: String,
    },
    /// A matrix or instruction descriptor that the instruction does not take.
    #[error("descriptor {bits:#x}: {problem}")]
    Descriptor {
        /// The descriptor.
        bits: u64,
        /// What is wrong.
        problem: String,
    },
    /// Misuse of tensor memory.
    #[error("tensor memory: {problem}")]
    TensorMemory {
        /// What is wrong.
        problem: String,
    },
    /// Something that must be given back or finished before the kernel ends.
    #[error("at the end of the kernel: {problem}")]
    Leak {
        /// What is left.
        problem: String,
    },
    /// No thread can go on and nothing is under way.
    #[error("deadlock: {}", waiting.join("; "))]
    Deadlock {
        /// What each warp waits for.
        waiting: Vec<String>,
    },
    /// The kernel runs longer than its launch allows.
    #[error("no end after {instructions} instructions of a warp")]
    NoEnd {
        /// Instructions executed by the cluster.
        instructions: u64,
    },
    /// `trap`.
    #[error("trap")]
    Trap,
    /// A legal form that is not modelled and shows only at run time.
    #[error("not modelled: {what}")]
    NotModelled {
        /// What.
        what: String,
    },
}
