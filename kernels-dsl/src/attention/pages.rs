//! Where the keys of a paged sequence lie: k and v are [pages, h_kv, page, d], so that the page takes
//! the place of the batch entry.

use cubecl::prelude::*;

use super::{LogitTensors, TableOffsets, table_word};

/// The page table of one sequence.
#[derive(CubeType, Clone, Copy)]
pub struct KeyPages<'a> {
    /// Holds the table, bound apart or with the host's.
    pub tensors: &'a LogitTensors,
    /// Word of the sequence's first page.
    pub at: usize,
    /// Rows of a page.
    #[cube(comptime)]
    pub page: u32,
}

#[cube]
impl<'a> KeyPages<'a> {
    /// The table of `sequence`.
    pub fn new(
        tensors: &'a LogitTensors,
        offsets: &TableOffsets,
        sequence: u32,
        #[comptime] page: u32,
    ) -> KeyPages<'a> {
        KeyPages::<'a> {
            tensors,
            at: offsets.pages + sequence as usize * offsets.page_row,
            page,
        }
    }

    /// Page that key `key` lies in, in row `key % page`. Says nothing of keys past the sequence.
    pub fn page_of(&self, key: u32) -> u32 {
        let at = self.at + (key / comptime!(self.page)) as usize;
        #[comptime]
        match &self.tensors.pages {
            ComptimeOption::Some(pages) => pages[at],
            ComptimeOption::None => table_word(self.tensors, at),
        }
    }
}
