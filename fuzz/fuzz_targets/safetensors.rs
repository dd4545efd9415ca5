#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../crates/formats/tests/suite/drive.rs"]
mod drive;

fuzz_target!(|bytes: &[u8]| {
    drive::safetensors(bytes);
});
