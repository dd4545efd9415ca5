//! The counter that persistent cubes draw their tiles from.

use std::sync::{Mutex, PoisonError};

use cubecl::prelude::{Client, CubeElement};
use cubecl::server::Handle;

/// One u32 of the client's stream, 0 whenever no launch is under way: every launch that draws
/// from it leaves it at 0, so nothing has to be cleared between launches and a captured graph can
/// be replayed. Launches of one stream follow one another; another stream has another counter.
pub(crate) fn tickets(client: &Client) -> Handle {
    static COUNTERS: Mutex<Vec<Handle>> = Mutex::new(Vec::new());
    // A client does not tell its device and stream, its buffers do.
    let here = client.empty(4);
    let mut counters = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = counters
        .iter()
        .find(|c| c.service == here.service && c.stream == here.stream);
    if let Some(counter) = known {
        return counter.clone();
    }
    let counter = client.create_from_slice(u32::as_bytes(&[0]));
    counters.push(counter.clone());
    counter
}
