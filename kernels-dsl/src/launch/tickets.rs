//! Counters that cubes of a launch meet at.

use std::sync::{Mutex, PoisonError};

use cubecl::prelude::{Client, CubeElement};
use cubecl::server::Handle;

/// One u32 of the client's stream that persistent cubes draw their tiles from; see [`zeroed`].
pub(crate) fn tickets(client: &Client) -> Handle {
    static COUNTERS: Mutex<Vec<Handle>> = Mutex::new(Vec::new());
    zeroed(client, &COUNTERS, 1)
}

/// Counters of a stream.
pub(crate) const COUNTERS: usize = 4096;

/// [`COUNTERS`] u32 of the client's stream, one for each block or tile that cubes compute in parts; see
/// [`zeroed`].
pub(crate) fn counters(client: &Client) -> Handle {
    static KNOWN: Mutex<Vec<Handle>> = Mutex::new(Vec::new());
    zeroed(client, &KNOWN, COUNTERS)
}

/// u32 that are 0 whenever no launch is under way: every launch that counts with them leaves them at
/// 0, so nothing has to be cleared between launches and a captured graph can be replayed. Launches
/// of one stream follow one another; another stream has others.
fn zeroed(client: &Client, known: &Mutex<Vec<Handle>>, n: usize) -> Handle {
    // A client does not tell its device and stream, its buffers do.
    let here = client.empty(4);
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    let found = known
        .iter()
        .find(|c| c.service == here.service && c.stream == here.stream);
    if let Some(counter) = found {
        return counter.clone();
    }
    let counter = client.create_from_slice(u32::as_bytes(&vec![0; n]));
    known.push(counter.clone());
    counter
}
