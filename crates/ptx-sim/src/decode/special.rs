//! Names of special registers.

use super::Decoded;
use super::op::{LaneMask, Special};

pub(super) fn parse(name: &str) -> Decoded<Special> {
    let (base, axis) = match name.rsplit_once('.') {
        Some((base, "x")) => (base, Some(0)),
        Some((base, "y")) => (base, Some(1)),
        Some((base, "z")) => (base, Some(2)),
        _ => (name, None),
    };
    let found = match (base, axis) {
        ("%tid", Some(i)) => Special::Tid(i),
        ("%ntid", Some(i)) => Special::Ntid(i),
        ("%ctaid", Some(i)) => Special::Ctaid(i),
        ("%nctaid", Some(i)) => Special::Nctaid(i),
        ("%cluster_ctaid", Some(i)) => Special::ClusterCtaid(i),
        ("%cluster_nctaid", Some(i)) => Special::ClusterNctaid(i),
        ("%clusterid", Some(i)) => Special::ClusterId(i),
        ("%nclusterid", Some(i)) => Special::NClusterId(i),
        ("%cluster_ctarank", None) => Special::ClusterRank,
        ("%cluster_nctarank", None) => Special::ClusterSize,
        ("%laneid", None) => Special::Lane,
        ("%warpid", None) => Special::Warp,
        ("%nwarpid", None) => Special::NWarp,
        ("%smid", None) => Special::Sm,
        ("%nsmid", None) => Special::NSm,
        ("%lanemask_eq", None) => Special::LaneMask(LaneMask::Eq),
        ("%lanemask_lt", None) => Special::LaneMask(LaneMask::Lt),
        ("%lanemask_le", None) => Special::LaneMask(LaneMask::Le),
        ("%lanemask_gt", None) => Special::LaneMask(LaneMask::Gt),
        ("%lanemask_ge", None) => Special::LaneMask(LaneMask::Ge),
        ("%clock" | "%clock64" | "%globaltimer" | "%clock_hi" | "%globaltimer_lo", None) => {
            Special::Clock
        }
        ("%dynamic_smem_size", None) => Special::DynamicShared,
        ("%total_smem_size", None) => Special::TotalShared,
        _ => return Err(format!("special register `{name}` is not modelled")),
    };
    Ok(found)
}
