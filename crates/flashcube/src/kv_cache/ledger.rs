//! Who holds which page: bookkeeping without a device.

use std::collections::{BTreeMap, HashMap};

use super::{KvCacheError, SequenceId};

/// Pages and lengths of every sequence.
#[derive(Debug, Clone)]
pub(super) struct Ledger {
    /// Rows of a page.
    page: usize,
    /// Sequences that hold each page.
    holders: Vec<u32>,
    /// Pages that none holds; the last one is handed out first.
    free: Vec<u32>,
    sequences: BTreeMap<SequenceId, Held>,
    next: u64,
}

/// What one sequence holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) pages: Vec<u32>,
    pub(super) len: usize,
}

/// What an append will change: nothing has happened yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Growth {
    /// What each sequence will hold.
    pub(super) after: Vec<(SequenceId, Held)>,
    /// Pages whose rows must be copied first, since others hold them too: (from, to).
    pub(super) copies: Vec<(u32, u32)>,
    /// Pages taken from the free ones.
    taken: usize,
}

impl Ledger {
    pub(super) fn new(pages: usize, page: usize) -> Self {
        Self {
            page,
            holders: vec![0; pages],
            free: (0..pages as u32).rev().collect(),
            sequences: BTreeMap::new(),
            next: 0,
        }
    }

    pub(super) fn free_pages(&self) -> usize {
        self.free.len()
    }

    pub(super) fn held(&self, id: SequenceId) -> Result<&Held, KvCacheError> {
        let held = self.sequences.get(&id);
        held.ok_or(KvCacheError::UnknownSequence { sequence: id })
    }

    pub(super) fn insert(&mut self, held: Held) -> SequenceId {
        for &page in &held.pages {
            self.holders[page as usize] += 1;
        }
        let id = SequenceId(self.next);
        self.next += 1;
        self.sequences.insert(id, held);
        id
    }

    /// What it takes to give each sequence so many more keys.
    ///
    /// # Errors
    /// [`KvCacheError`] for a sequence that does not exist or is named twice, or too few free pages.
    pub(super) fn plan(
        &self,
        ids: &[SequenceId],
        counts: &[usize],
    ) -> Result<Growth, KvCacheError> {
        let mut growth = Growth {
            after: Vec::with_capacity(ids.len()),
            copies: Vec::new(),
            taken: 0,
        };
        // Pages that a sequence of this append has left for a copy of its own.
        let mut left: HashMap<u32, u32> = HashMap::new();
        let mut fresh = self.free.iter().rev().copied();
        let mut needed = 0;
        for (at, (&id, &count)) in ids.iter().zip(counts).enumerate() {
            if ids[..at].contains(&id) {
                return Err(KvCacheError::RepeatedSequence { sequence: id });
            }
            let mut held = self.held(id)?.clone();
            let end = held.len + count;
            let partial = count > 0 && !held.len.is_multiple_of(self.page);
            if partial && let Some(last) = held.pages.last_mut() {
                let gone = left.entry(*last).or_default();
                if self.holders[*last as usize] - *gone > 1 {
                    *gone += 1;
                    needed += 1;
                    if let Some(page) = fresh.next() {
                        growth.copies.push((*last, page));
                        *last = page;
                    }
                }
            }
            let more = end.div_ceil(self.page).saturating_sub(held.pages.len());
            needed += more;
            held.pages.extend(fresh.by_ref().take(more));
            held.len = end;
            growth.after.push((id, held));
        }
        if needed > self.free.len() {
            let free = self.free.len();
            return Err(KvCacheError::OutOfPages { needed, free });
        }
        growth.taken = needed;
        Ok(growth)
    }

    /// Makes what [`plan`](Self::plan) found true. Nothing may have changed in between.
    pub(super) fn commit(&mut self, growth: Growth) {
        self.free.truncate(self.free.len() - growth.taken);
        for (id, after) in growth.after {
            for &page in &after.pages {
                self.holders[page as usize] += 1;
            }
            if let Some(before) = self.sequences.insert(id, after) {
                self.drop_pages(&before.pages);
            }
        }
    }

    /// Cuts a sequence to its first `len` keys.
    pub(super) fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), KvCacheError> {
        let held = self.held(id)?;
        let length = held.len;
        if len > length {
            return Err(KvCacheError::PastEnd {
                sequence: id,
                length,
                asked: len,
            });
        }
        let kept = len.div_ceil(self.page);
        let mut held = held.clone();
        let dropped = held.pages.split_off(kept);
        held.len = len;
        self.sequences.insert(id, held);
        self.drop_pages(&dropped);
        Ok(())
    }

    pub(super) fn remove(&mut self, id: SequenceId) -> Result<(), KvCacheError> {
        let pages = self.held(id)?.pages.clone();
        self.sequences.remove(&id);
        self.drop_pages(&pages);
        Ok(())
    }

    fn drop_pages(&mut self, pages: &[u32]) {
        for &page in pages {
            let holders = &mut self.holders[page as usize];
            *holders -= 1;
            if *holders == 0 {
                self.free.push(page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grow(ledger: &mut Ledger, ids: &[SequenceId], counts: &[usize]) -> Vec<(u32, u32)> {
        let growth = ledger.plan(ids, counts).unwrap();
        let copies = growth.copies.clone();
        ledger.commit(growth);
        copies
    }

    /// Every page is free or held, and by as many as say so.
    fn check(ledger: &Ledger) {
        let mut holders = vec![0; ledger.holders.len()];
        for held in ledger.sequences.values() {
            assert_eq!(held.pages.len(), held.len.div_ceil(ledger.page));
            held.pages.iter().for_each(|&p| holders[p as usize] += 1);
        }
        assert_eq!(holders, ledger.holders);
        let mut free = ledger.free.clone();
        free.sort_unstable();
        let idle = (0..holders.len() as u32).filter(|&p| holders[p as usize] == 0);
        assert_eq!(free, idle.collect::<Vec<_>>());
    }

    #[test]
    fn sequences_grow_by_pages_and_give_them_back() {
        let mut ledger = Ledger::new(5, 4);
        let (a, b) = (
            ledger.insert(Held::default()),
            ledger.insert(Held::default()),
        );
        assert!(grow(&mut ledger, &[a, b], &[5, 4]).is_empty());
        assert_eq!(ledger.free_pages(), 2);
        check(&ledger);
        ledger.truncate(a, 4).unwrap();
        assert_eq!((ledger.held(a).unwrap().len, ledger.free_pages()), (4, 3));
        ledger.remove(b).unwrap();
        check(&ledger);
        assert_eq!(ledger.free_pages(), 4);
        assert!(matches!(
            ledger.held(b),
            Err(KvCacheError::UnknownSequence { .. })
        ));
    }

    #[test]
    fn an_append_that_does_not_fit_changes_nothing() {
        let mut ledger = Ledger::new(3, 4);
        let a = ledger.insert(Held::default());
        grow(&mut ledger, &[a], &[3]);
        let before = ledger.clone();
        let error = ledger.plan(&[a], &[10]).unwrap_err();
        assert!(matches!(
            error,
            KvCacheError::OutOfPages { needed: 3, free: 2 }
        ));
        assert!(matches!(
            ledger.plan(&[a, a], &[1, 1]),
            Err(KvCacheError::RepeatedSequence { .. })
        ));
        assert!(matches!(
            ledger.truncate(a, 4),
            Err(KvCacheError::PastEnd {
                length: 3,
                asked: 4,
                ..
            })
        ));
        assert_eq!(ledger.held(a).unwrap(), before.held(a).unwrap());
        assert_eq!(ledger.free, before.free);
        check(&ledger);
    }

    #[test]
    fn a_shared_partial_page_is_copied_by_all_but_its_last_holder() {
        let mut ledger = Ledger::new(8, 4);
        let a = ledger.insert(Held::default());
        grow(&mut ledger, &[a], &[6]);
        let held = ledger.held(a).unwrap().clone();
        let (b, c) = (ledger.insert(held.clone()), ledger.insert(held.clone()));
        check(&ledger);
        // Three hold the partial page: two copy it, whoever is last keeps it.
        let copies = grow(&mut ledger, &[a, b, c], &[1, 1, 1]);
        assert_eq!(copies.len(), 2);
        assert!(copies.iter().all(|&(from, _)| from == held.pages[1]));
        check(&ledger);
        let pages = |id| ledger.held(id).unwrap().pages.clone();
        assert_eq!(pages(a)[0], pages(c)[0]);
        assert_eq!(pages(c)[1], held.pages[1]);
        assert_ne!(pages(a)[1], pages(b)[1]);
        // A full page is shared without a copy.
        ledger.truncate(a, 4).unwrap();
        assert!(grow(&mut ledger, &[a], &[1]).is_empty());
        check(&ledger);
    }
}
