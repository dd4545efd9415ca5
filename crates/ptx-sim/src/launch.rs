//! What to run, how, and what came of it.

use std::collections::BTreeMap;
use std::fmt;

use rayon::prelude::*;

use crate::error::{Result, SimError};
use crate::exec::Machine;
use crate::global::{BufferId, Memory};
use crate::kernel::Kernel;
use crate::tensor_map::TensorMap;

/// A kernel's argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// Address of byte `.1` of a buffer.
    Buffer(BufferId, u64),
    /// Plain bytes of a scalar or a struct.
    Bytes(Vec<u8>),
    /// A tensor map, passed by value; a larger parameter is a struct that starts with it, and the rest is 0.
    TensorMap(TensorMap),
    /// A null pointer.
    Null,
}

/// When asynchronous operations finish and in which order warps run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Operations finish only when every thread waits; warps run in turn.
    Latest,
    /// Operations finish, and warps run, at random; the same seed gives the same run of a cube.
    Random(u64),
}

/// A launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Cubes along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a cube along x, y, z.
    pub cube: [u32; 3],
    /// Cubes of a cluster along x, y, z.
    pub cluster: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: usize,
    /// Arguments in order.
    pub args: Vec<Arg>,
    /// Order of events.
    pub schedule: Schedule,
    /// Instructions that the warps of a cluster may execute together.
    pub max_instructions: u64,
    /// A copy may complete only on an mbarrier whose initialisation a fence followed. CUTLASS's library has one, Triton and
    /// CUTLASS's tutorials rely on the barrier behind it.
    pub init_fence: bool,
    /// What tcgen05.ld brings may be read only after tcgen05.wait::ld. The ISA lets the thread itself go by the register
    /// (CUTLASS's tutorials do), but what is read of tensor memory may be overwritten only after the wait.
    pub load_wait: bool,
}

impl Launch {
    /// A launch without clusters and dynamic shared memory, at the latest legal moment.
    pub fn new(grid: [u32; 3], cube: [u32; 3], args: Vec<Arg>) -> Self {
        Self {
            grid,
            cube,
            cluster: [1; 3],
            dynamic_shared: 0,
            args,
            schedule: Schedule::Latest,
            max_instructions: 1 << 32,
            init_fence: true,
            load_wait: true,
        }
    }
}

/// What ran.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Warp-level executions of every opcode of the kernel, 0 for those that never ran.
    pub opcodes: BTreeMap<String, u64>,
    /// Instructions of the kernel that ran at least once, and all.
    pub instructions: (usize, usize),
}

impl Coverage {
    /// Adds another run.
    pub fn merge(&mut self, other: &Coverage) {
        for (opcode, count) in &other.opcodes {
            *self.opcodes.entry(opcode.clone()).or_default() += count;
        }
        self.instructions.0 += other.instructions.0;
        self.instructions.1 += other.instructions.1;
    }
    /// Warp-level instructions executed.
    pub fn executed(&self) -> u64 {
        self.opcodes.values().sum()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ran, all) = self.instructions;
        writeln!(f, "{ran} of {all} instructions ran")?;
        for (opcode, count) in &self.opcodes {
            writeln!(f, "{count:>12}  {opcode}")?;
        }
        Ok(())
    }
}

/// Parameters of all cubes.
pub(crate) struct Params {
    pub(crate) bytes: Vec<u8>,
    pub(crate) maps: Vec<TensorMap>,
}

/// Marks the 128 bytes of a tensor map; its number follows.
pub(crate) const MAP_MAGIC: u64 = 0x7073_696d_5f6d_6170;

/// Runs `kernel` over the grid, clusters in parallel, and returns what was executed. Results are in `memory`.
///
/// # Errors
/// [`SimError::Launch`] when arguments, sizes or clusters do not fit the kernel; [`SimError::Fault`] for the first fault
/// of the cube that comes first among those that failed.
pub fn run(kernel: &Kernel, launch: &Launch, memory: &Memory) -> Result<Coverage> {
    let params = params(kernel, launch, memory)?;
    check(kernel, launch)?;
    let clusters: [u32; 3] = std::array::from_fn(|i| launch.grid[i] / launch.cluster[i]);
    let total = clusters.iter().map(|&n| u64::from(n)).product::<u64>();
    let counts: Result<Vec<u64>> = (0..total)
        .into_par_iter()
        .map(|index| {
            let x = (index % u64::from(clusters[0])) as u32;
            let y = (index / u64::from(clusters[0]) % u64::from(clusters[1])) as u32;
            let z = (index / u64::from(clusters[0]) / u64::from(clusters[1])) as u32;
            Machine::new(kernel, launch, memory, &params, [x, y, z]).run()
        })
        .try_reduce(
            || vec![0; kernel.code.len()],
            |mut sum, counts| {
                for (total, count) in sum.iter_mut().zip(counts) {
                    *total += count;
                }
                Ok(sum)
            },
        );
    Ok(coverage(kernel, &counts?))
}

fn coverage(kernel: &Kernel, counts: &[u64]) -> Coverage {
    let mut coverage = Coverage {
        instructions: (
            counts.iter().filter(|&&count| count > 0).count(),
            counts.len(),
        ),
        ..Coverage::default()
    };
    for (opcode, count) in kernel.opcodes.iter().zip(counts) {
        *coverage.opcodes.entry(opcode.clone()).or_default() += count;
    }
    coverage
}

fn check(kernel: &Kernel, launch: &Launch) -> Result<()> {
    let bad = |problem: String| Err(SimError::launch(&kernel.name, problem));
    let units = launch.cube.iter().product::<u32>();
    if units == 0 || units > 1024 {
        return bad(format!("{units} threads a cube: 1 to 1024 are legal"));
    }
    if let Some(max) = kernel.max_units
        && units > max.iter().product()
    {
        return bad(format!("{units} threads a cube, declared are {max:?}"));
    }
    if let Some(cluster) = kernel.cluster
        && cluster != launch.cluster
    {
        return bad(format!(
            "clusters of {:?}, declared are {cluster:?}",
            launch.cluster
        ));
    }
    let cubes = launch.cluster.iter().product::<u32>();
    if cubes == 0 || cubes > 16 {
        return bad(format!("{cubes} cubes a cluster: 1 to 16 are legal"));
    }
    if (0..3).any(|i| !launch.grid[i].is_multiple_of(launch.cluster[i])) {
        return bad(format!(
            "grid {:?} is no multiple of cluster {:?}",
            launch.grid, launch.cluster
        ));
    }
    let shared = kernel.static_shared + launch.dynamic_shared;
    // 228 KiB a multiprocessor, of which 1 KiB is the system's.
    if shared > 228 * 1024 {
        return bad(format!("{shared} bytes of shared memory: at most 233472"));
    }
    Ok(())
}

fn params(kernel: &Kernel, launch: &Launch, memory: &Memory) -> Result<Params> {
    if launch.args.len() != kernel.params.len() {
        return Err(SimError::launch(
            &kernel.name,
            format!(
                "{} arguments for {} parameters",
                launch.args.len(),
                kernel.params.len()
            ),
        ));
    }
    let mut params = Params {
        bytes: vec![0; kernel.param_bytes],
        maps: Vec::new(),
    };
    for (i, (arg, &(at, bytes))) in launch.args.iter().zip(&kernel.params).enumerate() {
        let data = match arg {
            Arg::Buffer(id, offset) => memory.address(*id, *offset).to_le_bytes().to_vec(),
            Arg::Null => vec![0; 8],
            Arg::Bytes(data) => data.clone(),
            Arg::TensorMap(map) => {
                let mut data = vec![0; bytes.max(128)];
                data[..8].copy_from_slice(&MAP_MAGIC.to_le_bytes());
                data[8..16].copy_from_slice(&(params.maps.len() as u64).to_le_bytes());
                map.check().map_err(|problem| {
                    SimError::launch(&kernel.name, format!("argument {i}: {problem}"))
                })?;
                params.maps.push(map.clone());
                data
            }
        };
        if data.len() != bytes {
            return Err(SimError::launch(
                &kernel.name,
                format!(
                    "argument {i} has {} bytes, the parameter {bytes}",
                    data.len()
                ),
            ));
        }
        params.bytes[at..at + bytes].copy_from_slice(&data);
    }
    Ok(params)
}
