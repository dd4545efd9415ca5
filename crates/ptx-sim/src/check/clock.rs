//! Vector clocks: who knows about whose actions.
//!
//! A component is a warp of the cluster or a source of asynchronous completions (an mbarrier, a bulk group). An action is
//! an epoch (component, time); it comes before another one if that one's warp has seen the epoch.

/// What a warp or a synchronisation object has seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Knowledge {
    seen: Vec<u32>,
    /// What had been seen when the last proxy fence on the way here was executed.
    fenced: Vec<u32>,
}

fn join(into: &mut Vec<u32>, from: &[u32]) {
    if into.len() < from.len() {
        into.resize(from.len(), 0);
    }
    for (mine, &theirs) in into.iter_mut().zip(from) {
        *mine = (*mine).max(theirs);
    }
}

impl Knowledge {
    pub(crate) fn of(component: usize) -> Self {
        let mut new = Self::default();
        new.advance(component);
        new
    }
    /// Takes over what `other` has seen.
    pub(crate) fn join(&mut self, other: &Knowledge) {
        join(&mut self.seen, &other.seen);
        join(&mut self.fenced, &other.fenced);
    }
    pub(crate) fn time(&self, component: usize) -> u32 {
        self.seen.get(component).copied().unwrap_or(0)
    }
    /// What follows is later than what others take over now.
    pub(crate) fn advance(&mut self, component: usize) {
        let next = self.time(component) + 1;
        self.learn(component, next);
    }
    pub(crate) fn learn(&mut self, component: usize, time: u32) {
        if self.seen.len() <= component {
            self.seen.resize(component + 1, 0);
        }
        self.seen[component] = self.seen[component].max(time);
    }
    pub(crate) fn knows(&self, component: usize, time: u32) -> bool {
        self.time(component) >= time
    }
    /// Whether a proxy fence lies between the epoch and here.
    pub(crate) fn fenced(&self, component: usize, time: u32) -> bool {
        self.fenced.get(component).copied().unwrap_or(0) >= time
    }
    /// A proxy fence.
    pub(crate) fn fence(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        join(&mut self.fenced, &seen);
        self.seen = seen;
    }
}
