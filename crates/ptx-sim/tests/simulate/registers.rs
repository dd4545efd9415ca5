//! Registers that warps of a cube hand to one another with setmaxnreg.

use flashcube_ptx_sim::{Fault, Kernel, Launch, Memory, SimError, parse, run};

/// The first of five warpgroups goes down to 32 registers a thread, the others up to `up`.
fn split(up: u32) -> Result<(), SimError> {
    let text = format!(
        ".version 8.0
.target sm_90a
.address_size 64
.visible .entry split() {{
    .reg .b32 %r<2>; .reg .pred %p<2>;
    mov.u32 %r0, %tid.x;
    setp.lt.u32 %p0, %r0, 128;
    @%p0 bra DOWN;
    setmaxnreg.inc.sync.aligned.u32 {up};
    ret;
DOWN:
    setmaxnreg.dec.sync.aligned.u32 32;
    ret;
}}"
    );
    let kernel = Kernel::load(&parse(&text)?, Some("split"))?;
    let launch = Launch::new([1; 3], [640, 1, 1], vec![]);
    run(&kernel, &launch, &Memory::new()).map(drop)
}

#[test]
fn a_cube_has_no_more_registers_than_it_started_with() {
    // 640 threads start with 96 each: 480 for one thread of every warpgroup.
    split(112).unwrap();
    let error = split(120).unwrap_err();
    let deadlock = |fault: &Fault| matches!(fault, Fault::Deadlock { .. });
    assert!(
        matches!(&error, SimError::Fault { fault, .. } if deadlock(fault)),
        "{error}"
    );
    assert!(error.to_string().contains("registers a thread"), "{error}");
}
