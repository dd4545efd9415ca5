//! mbarrier objects: phases, arrivals, transaction counts.

use std::fmt;

use super::address::Place;
use super::machine::Machine;
use super::step::Flow;
use super::task::Task;
use super::warp::{Wait, Warp, lanes};
use crate::check::{Epoch, Fault, Knowledge};
use crate::decode::{Addr, AddrSpace, Mbar, PhaseArg};

/// Largest count of arrivals and of bytes.
const LIMIT: i64 = (1 << 20) - 1;

/// An object.
#[derive(Debug)]
pub(super) struct Mbarrier {
    /// Arrivals that a phase takes.
    count: u32,
    /// Arrivals that are missing.
    pending: u32,
    /// Bytes that are expected and have not come.
    tx: i64,
    phase: u64,
    coming: Knowledge,
    known: Knowledge,
    /// Its clock's component: time n + 1 is the end of phase n.
    component: usize,
    /// Who made it, and when.
    made: Epoch,
    /// When a fence made it visible to asynchronous operations.
    fenced: Option<Epoch>,
}

impl fmt::Display for Mbarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "in phase {}, {} of {} arrivals and {} bytes missing",
            self.phase, self.pending, self.count, self.tx
        )
    }
}

impl Mbarrier {
    /// The phase that has not completed.
    pub(super) fn phase(&self) -> u64 {
        self.phase
    }
    /// What an asynchronous write that completes here is known by.
    pub(super) fn epoch(&self) -> Epoch {
        Epoch {
            component: self.component as u16,
            time: self.phase as u32 + 1,
        }
    }

    fn arrive(&mut self, count: u32) -> Result<(), String> {
        if count == 0 || count > self.pending {
            return Err(format!(
                "{count} arrivals where {} are missing",
                self.pending
            ));
        }
        self.pending -= count;
        self.settle()
    }

    fn expect(&mut self, bytes: i64) -> Result<(), String> {
        self.tx += bytes;
        if self.tx.abs() > LIMIT {
            return Err(format!("{} bytes are expected: at most {LIMIT}", self.tx));
        }
        self.settle()
    }

    fn settle(&mut self) -> Result<(), String> {
        if self.pending > 0 {
            return Ok(());
        }
        if self.tx < 0 {
            return Err(format!(
                "{} bytes more than expected have come, and no arrival is missing",
                -self.tx
            ));
        }
        if self.tx == 0 {
            self.phase += 1;
            self.pending = self.count;
            let coming = std::mem::take(&mut self.coming);
            self.known.join(&coming);
            self.known.learn(self.component, self.phase as u32);
        }
        Ok(())
    }
}

impl Machine<'_> {
    pub(super) fn mbarrier(
        &mut self,
        warp: &mut Warp,
        active: u32,
        op: &Mbar,
        addr: Addr,
        space: AddrSpace,
    ) -> Result<Flow, Fault> {
        if let Mbar::Wait { .. } = op {
            return self.mbarrier_wait(warp, active, op, addr, space);
        }
        for lane in lanes(active) {
            let (cube, at) = self.mbarrier_place(warp, addr, space, lane)?;
            self.mbarrier_one(warp, lane, op, cube, at)?;
        }
        Ok(Flow::Next)
    }

    fn mbarrier_place(
        &self,
        warp: &Warp,
        addr: Addr,
        space: AddrSpace,
        lane: usize,
    ) -> Result<(usize, u32), Fault> {
        // A 32-bit address of shared memory, or a generic one.
        match self.place(warp, space, addr, lane)? {
            Place::Shared { cube, at } => {
                self.cubes[cube].shared.check(at, 8, 8)?;
                Ok((cube, at))
            }
            place => Err(Fault::NotModelled {
                what: format!("an mbarrier at {place:?}"),
            }),
        }
    }

    pub(super) fn object(&mut self, cube: usize, at: u32) -> Result<&mut Mbarrier, Fault> {
        let address = at | self.base(cube);
        self.cubes[cube]
            .mbarriers
            .get_mut(&at)
            .ok_or_else(|| Fault::Mbarrier {
                address,
                problem: "there is none".to_owned(),
            })
    }

    /// Only a cube's own threads make an object, end it or wait on it.
    fn local_object(&self, warp: &Warp, cube: usize, at: u32) -> Result<(), Fault> {
        if cube == warp.cube {
            return Ok(());
        }
        Err(Fault::Mbarrier {
            address: at | self.base(cube),
            problem: format!(
                "it lies in cube {cube} of the cluster, and other cubes may only arrive and count bytes there"
            ),
        })
    }

    /// The object's initialisation comes before what the warp does now.
    pub(super) fn known_object(&mut self, warp: &Warp, cube: usize, at: u32) -> Result<(), Fault> {
        let made = self.object(cube, at)?.made;
        if warp.know.knows(made.component as usize, made.time) {
            return Ok(());
        }
        Err(Fault::Race {
            space: "shared",
            address: u64::from(at | self.base(cube)),
            access: "use of the mbarrier",
            earlier: format!("initialisation by warp {}", made.component),
        })
    }

    /// As [`Self::known_object`], for a copy that will complete there: a fence must have followed the initialisation.
    pub(super) fn fenced_object(&mut self, warp: &Warp, cube: usize, at: u32) -> Result<(), Fault> {
        self.known_object(warp, cube, at)?;
        if !self.launch.init_fence {
            return Ok(());
        }
        let Mbarrier { made, fenced, .. } = *self.object(cube, at)?;
        let knows = |epoch: Epoch| warp.know.knows(epoch.component as usize, epoch.time);
        if fenced.is_some_and(knows) || warp.know.fenced(made.component as usize, made.time) {
            return Ok(());
        }
        Err(Fault::Mbarrier {
            address: at | self.base(cube),
            problem: "a copy completes on it, and neither fence.mbarrier_init nor \
                      fence.proxy.async followed its initialisation"
                .to_owned(),
        })
    }

    /// fence.mbarrier_init: what the warp initialised is visible to asynchronous operations.
    pub(super) fn fence_objects(&mut self, warp: &Warp) {
        let component = warp.id as u16;
        let now = Epoch {
            component,
            time: warp.know.time(warp.id),
        };
        let objects = self.cubes[warp.cube].mbarriers.values_mut();
        for object in objects.filter(|object| object.made.component == component) {
            object.fenced.get_or_insert(now);
        }
    }

    /// Changes an object; what goes wrong is a fault of its address.
    fn change<T>(
        &mut self,
        cube: usize,
        at: u32,
        change: impl FnOnce(&mut Mbarrier) -> Result<T, String>,
    ) -> Result<T, Fault> {
        let address = at | self.base(cube);
        let object = self.object(cube, at)?;
        change(object).map_err(|problem| Fault::Mbarrier { address, problem })
    }

    fn mbarrier_one(
        &mut self,
        warp: &mut Warp,
        lane: usize,
        op: &Mbar,
        cube: usize,
        at: u32,
    ) -> Result<(), Fault> {
        let base = self.base(warp.cube);
        let read = |warp: &Warp, src| warp.get(src, lane, base);
        if !matches!(op, Mbar::Init { .. }) {
            self.known_object(warp, cube, at)?;
        }
        match op {
            Mbar::Init { .. } | Mbar::Inval | Mbar::ArriveAsync { .. } => {
                self.local_object(warp, cube, at)?;
            }
            _ => self.present(warp, cube)?,
        }
        match op {
            Mbar::Init { count } => {
                let count = read(warp, *count) as u32;
                self.init(warp, lane, cube, at, count)
            }
            Mbar::Inval => {
                self.object(cube, at)?;
                self.cubes[cube].mbarriers.remove(&at);
                self.cubes[cube].shared.remove_mbarrier(at);
                Ok(())
            }
            Mbar::Arrive { state, count, tx } => {
                let count = read(warp, *count) as u32;
                let tx = tx.map(|tx| read(warp, tx) as u32);
                let known = self.release(warp, 1 << lane);
                let phase = self.change(cube, at, |object| {
                    let phase = object.phase;
                    object.coming.join(&known);
                    // The expectation comes first, so that the phase cannot end between the two.
                    if let Some(tx) = tx {
                        object.tx += i64::from(tx);
                    }
                    object.arrive(count)?;
                    Ok(phase)
                })?;
                if let Some(state) = state {
                    warp.set(*state, lane, phase);
                }
                Ok(())
            }
            Mbar::ExpectTx { tx } => {
                let tx = read(warp, *tx) as u32;
                self.change(cube, at, |object| object.expect(i64::from(tx)))
            }
            Mbar::CompleteTx { tx } => {
                let tx = read(warp, *tx) as u32;
                self.change(cube, at, |object| object.expect(-i64::from(tx)))
            }
            Mbar::ArriveAsync { noinc } => self.arrive_async(warp, lane, cube, at, *noinc),
            Mbar::Wait { .. } => Ok(()),
        }
    }

    fn init(
        &mut self,
        warp: &Warp,
        lane: usize,
        cube: usize,
        at: u32,
        count: u32,
    ) -> Result<(), Fault> {
        let fault = |problem: String| {
            Err(Fault::Mbarrier {
                address: at,
                problem,
            })
        };
        if count == 0 || i64::from(count) > LIMIT {
            return fault(format!("{count} arrivals: 1 to {LIMIT} are legal"));
        }
        if self.cubes[cube].mbarriers.contains_key(&at) {
            return fault("a live object is initialised again".to_owned());
        }
        // As a store: what others still read or copy there must be over.
        self.cubes[cube]
            .shared
            .store(at, &[0; 8], &warp.access(lane))?;
        let component = self.component();
        let cube = &mut self.cubes[cube];
        cube.shared.add_mbarrier(at);
        cube.mbarriers.insert(
            at,
            Mbarrier {
                count,
                pending: count,
                tx: 0,
                phase: 0,
                coming: Knowledge::default(),
                known: Knowledge::default(),
                component,
                made: Epoch {
                    component: warp.id as u16,
                    time: warp.know.time(warp.id),
                },
                fenced: None,
            },
        );
        Ok(())
    }

    fn arrive_async(
        &mut self,
        warp: &mut Warp,
        lane: usize,
        cube: usize,
        at: u32,
        noinc: bool,
    ) -> Result<(), Fault> {
        if !noinc {
            // The pending count grows now and shrinks at the arrival.
            self.change(cube, at, |object| {
                object.pending += 1;
                Ok(())
            })?;
        }
        let copies = &mut warp.copies[lane];
        let mut chunks = copies.wait(0);
        chunks.append(&mut copies.open);
        self.tasks.push(Task::Arrive {
            chunks,
            warp: warp.id,
            lane,
            bar: at,
        });
        Ok(())
    }

    fn mbarrier_wait(
        &mut self,
        warp: &mut Warp,
        active: u32,
        op: &Mbar,
        addr: Addr,
        space: AddrSpace,
    ) -> Result<Flow, Fault> {
        let Mbar::Wait {
            done,
            phase,
            blocking,
        } = op
        else {
            return Ok(Flow::Next);
        };
        let base = self.base(warp.cube);
        let mut results = [false; 32];
        for lane in lanes(active) {
            let (cube, at) = self.mbarrier_place(warp, addr, space, lane)?;
            self.local_object(warp, cube, at)?;
            self.known_object(warp, cube, at)?;
            let object = self.object(cube, at)?;
            let now = object.phase;
            let (over, wanted) = match phase {
                PhaseArg::Parity(src) => {
                    let parity = warp.get(*src, lane, base);
                    (now & 1 != parity & 1, now)
                }
                PhaseArg::State(src) => {
                    let wanted = warp.get(*src, lane, base);
                    (now > wanted, wanted)
                }
            };
            if over {
                warp.know.join(&object.known);
            } else if *blocking {
                // One lane's wait holds back its group: all of them try again.
                return Ok(Flow::Wait(Wait::Mbarrier {
                    cube,
                    at,
                    phase: wanted,
                }));
            } else {
                self.polled = true;
            }
            results[lane] = over;
        }
        for lane in lanes(active) {
            warp.set(*done, lane, u64::from(results[lane]));
        }
        Ok(Flow::Next)
    }

    /// Bytes of a copy have come.
    pub(super) fn complete(&mut self, cube: usize, at: u32, bytes: u32) -> Result<(), Fault> {
        self.change(cube, at, |object| object.expect(-i64::from(bytes)))
    }

    /// One arrival with what it makes known.
    pub(super) fn arrive(&mut self, cube: usize, at: u32, known: &Knowledge) -> Result<(), Fault> {
        self.change(cube, at, |object| {
            object.coming.join(known);
            object.arrive(1)
        })
    }
}
