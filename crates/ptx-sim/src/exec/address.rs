//! Addresses to places.

use super::machine::Machine;
use super::warp::Warp;
use super::{GLOBALS_WINDOW, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};
use crate::check::Fault;
use crate::decode::{Addr, AddrSpace};

/// Where an access goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Global(u64),
    Variable(u64),
    Shared { cube: usize, at: u32 },
    Local(u64),
    Param(u64),
}

impl Place {
    /// So many bytes further on.
    pub(super) fn plus(self, bytes: usize) -> Self {
        let more = bytes as u64;
        match self {
            Place::Global(at) => Place::Global(at + more),
            Place::Variable(at) => Place::Variable(at + more),
            Place::Shared { cube, at } => Place::Shared {
                cube,
                at: at + bytes as u32,
            },
            Place::Local(at) => Place::Local(at + more),
            Place::Param(at) => Place::Param(at + more),
        }
    }
}

impl Machine<'_> {
    /// The address operand of a lane.
    pub(super) fn address(&self, warp: &Warp, addr: Addr, lane: usize) -> u64 {
        warp.get(addr.base, lane, self.base(warp.cube))
            .wrapping_add_signed(addr.offset)
    }

    /// A 32-bit shared address of a lane as an offset in its own cube.
    pub(super) fn shared_offset(&self, warp: &Warp, addr: Addr, lane: usize) -> Result<u32, Fault> {
        match self.place(warp, AddrSpace::Shared, addr, lane)? {
            Place::Shared { at, .. } => Ok(at),
            _ => Ok(0),
        }
    }

    pub(super) fn place(
        &self,
        warp: &Warp,
        space: AddrSpace,
        addr: Addr,
        lane: usize,
    ) -> Result<Place, Fault> {
        let address = self.address(warp, addr, lane);
        Ok(match space {
            AddrSpace::Global if address >= GLOBALS_WINDOW => Place::Variable(address),
            AddrSpace::Global => Place::Global(address),
            AddrSpace::Shared => Place::Shared {
                cube: warp.cube,
                at: self.own(warp.cube, address as u32)?,
            },
            AddrSpace::Cluster => {
                let (cube, at) = self.locate(address as u32)?;
                Place::Shared { cube, at }
            }
            AddrSpace::Local => Place::Local(address),
            AddrSpace::Param => Place::Param(address),
            AddrSpace::Generic => self.generic(address)?,
        })
    }

    /// Shared memory lasts until its cube's threads have exited.
    pub(super) fn present(&self, warp: &Warp, cube: usize) -> Result<(), Fault> {
        let mut others = self.warps[self.cubes[cube].warps.clone()].iter();
        if cube == warp.cube || others.any(|other| other.live != 0) {
            return Ok(());
        }
        Err(Fault::OutOfBounds {
            space: "shared",
            address: u64::from(self.base(cube)),
            bytes: 0,
            reason: format!("cube {cube} of the cluster has exited"),
        })
    }

    pub(super) fn generic(&self, address: u64) -> Result<Place, Fault> {
        Ok(match address {
            0..SHARED_WINDOW => Place::Global(address),
            SHARED_WINDOW..LOCAL_WINDOW => {
                let (cube, at) = self.locate((address - SHARED_WINDOW) as u32)?;
                Place::Shared { cube, at }
            }
            LOCAL_WINDOW..PARAM_WINDOW => Place::Local(address - LOCAL_WINDOW),
            PARAM_WINDOW..GLOBALS_WINDOW => Place::Param(address - PARAM_WINDOW),
            _ => Place::Variable(address),
        })
    }
}
