//! Other people's memory on the device, coming and going between repeats.

use std::collections::VecDeque;

use cubecl::prelude::Client;
use cubecl::server::Handle;

use crate::launch::POISON;

/// Buffers held at a time.
const HELD: usize = 8;
/// Turns between two that give everything back to the driver.
const CLEARED: u64 = 16;

/// Buffers full of poison around those of a launch: a kernel that reads what it did not write, or
/// outside its tensors, finds other bytes than in the run before.
pub(crate) struct Pressure<'a> {
    client: &'a Client,
    held: VecDeque<Handle>,
    turn: u64,
}

impl<'a> Pressure<'a> {
    pub(crate) fn new(client: &'a Client) -> Self {
        Self {
            client,
            held: VecDeque::new(),
            turn: 0,
        }
    }

    /// Frees some buffers and allocates others, of 256 B to 4 MB.
    pub(crate) fn turn(&mut self) {
        self.turn += 1;
        if self.turn.is_multiple_of(CLEARED) {
            self.held.clear();
            // What the driver could not take back now stays allocated: nothing is lost by that.
            let _ = self.client.memory_cleanup();
        }
        // Sizes out of step with the turns, so that buffers land where others were.
        for step in [7, 11] {
            let bytes = 256usize << (self.turn * step % 15);
            let poison = vec![POISON; bytes];
            self.held.push_back(self.client.create_from_slice(&poison));
        }
        while self.held.len() > HELD {
            // The oldest, or one from the middle: holes of different sizes.
            let at = (self.turn % 2) as usize * (HELD / 2);
            self.held.remove(at);
        }
    }
}
