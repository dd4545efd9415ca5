//! Root mean square errors of ours and the peers on the same inputs.

use std::fs;
use std::path::{Path, PathBuf};

use flashcube::{AttendOptions, DType, Policy, Tensor, attend_forward};
use flashcube_reference::Tensor4;
use flashcube_reference::attention::{Options, forward};

use super::super::Bench;
use crate::bench::draw::{Drawn, normal, with_outliers};
use crate::bench::measure::{finite, read};
use crate::bench::peers::Peers;
use crate::bench::report::{Accuracy, OURS};
use crate::elements::decode;
use crate::failure::{Failure, Result};

/// [b, h, s, d] on the host's cores and on a GPU.
const SMALL: [usize; 4] = [1, 2, 128, 64];
const LARGE: [usize; 4] = [1, 8, 2048, 128];

/// N(0, 1), and the same with outliers, for a 16-bit dtype.
pub(super) fn run(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    if dtype == DType::F32 {
        return Ok(());
    }
    let shape = bench.scaled(SMALL, LARGE);
    let [b, h, s, d] = shape;
    for (inputs, draw) in [
        ("normal", normal as fn(u64, u64) -> f32),
        ("outliers", with_outliers),
    ] {
        let name = format!("accuracy/{dtype}/b{b}_h{h}_s{s}_d{d}/{inputs}");
        if bench.wants(&name) {
            let seed = bench.seed;
            let drawn = [1, 2, 3].map(|stream| {
                let n = shape.iter().product();
                Drawn::of(dtype, n, |i| draw(seed ^ stream, i))
            });
            compare(bench, &name, dtype, shape, &drawn)?;
        }
    }
    Ok(())
}

fn compare(
    bench: &mut Bench<'_>,
    name: &str,
    dtype: DType,
    shape: [usize; 4],
    drawn: &[Drawn; 3],
) -> Result<()> {
    let exact = exact(shape, drawn)?;
    let rounded = Drawn::of(dtype, exact.len(), |i| exact[i as usize] as f32);
    let rounded_rmse = rmse(&rounded.values, &exact);
    let row = |implementation: &str, out: &[f32]| Accuracy {
        name: name.to_owned(),
        implementation: implementation.to_owned(),
        rmse: finite(rmse(out, &exact)),
        rounded_rmse,
    };
    let out = ours(bench, shape, drawn)?;
    bench.accuracy.push(row(OURS, &out));
    if let Some(peers) = &mut bench.peers {
        for (peer, out) in theirs(peers, dtype, shape, drawn)? {
            bench.peers_accuracy.push(row(&peer, &out));
        }
    }
    Ok(())
}

/// softmax(q k^T / sqrt(d)) v in f64.
fn exact(shape: [usize; 4], drawn: &[Drawn; 3]) -> Result<Vec<f64>> {
    let tensor = |i: usize| Tensor4::from_slice(shape, &drawn[i].values).map_err(Failure::failed);
    let options = Options {
        // The kernel's scale is an f32.
        scale: f64::from(1.0 / (shape[3] as f32).sqrt()),
        ..Options::default()
    };
    let output = forward(&tensor(0)?, &tensor(1)?, &tensor(2)?, &options);
    Ok(output.map_err(Failure::failed)?.out.data)
}

fn ours(bench: &Bench<'_>, shape: [usize; 4], drawn: &[Drawn; 3]) -> Result<Vec<f32>> {
    let client = &bench.device.client;
    let [q, k, v]: [Tensor<4>; 3] = [0, 1, 2].map(|i| drawn[i].upload(client, shape));
    let options = AttendOptions {
        policy: Policy {
            tier: bench.tier,
            ..Policy::default()
        },
        ..AttendOptions::default()
    };
    let attended = attend_forward(client, &q, &k, &v, &options).map_err(Failure::failed)?;
    Ok(decode(q.dtype, &read(client, &attended.out.handle)?))
}

/// (name, out) of every peer that has the dtype.
fn theirs(
    peers: &mut Peers,
    dtype: DType,
    shape: [usize; 4],
    drawn: &[Drawn; 3],
) -> Result<Vec<(String, Vec<f32>)>> {
    let folder = Exchange::new()?;
    let paths = ["q", "k", "v"].map(|name| folder.0.join(name));
    for (path, drawn) in paths.iter().zip(drawn) {
        let bytes: Vec<u8> = drawn.values.iter().flat_map(|x| x.to_le_bytes()).collect();
        fs::write(path, bytes).map_err(|e| unusable(path, e))?;
    }
    let output = folder.0.join("out");
    let inputs = [&*paths[0], &*paths[1], &*paths[2]];
    let mut found = Vec::new();
    for peer in peers.attention() {
        let answer = peers.attend(&peer.name, &dtype.to_string(), shape, &inputs, &output)?;
        if answer.refused.is_none() {
            let bytes = fs::read(&output).map_err(|e| unusable(&output, e))?;
            found.push((peer.name, decode(DType::F32, &bytes)));
        }
    }
    Ok(found)
}

fn unusable(path: &Path, error: std::io::Error) -> Failure {
    Failure::failed(format!("cannot use {}: {error}", path.display()))
}

/// A folder of files to hand over, removed afterwards.
struct Exchange(PathBuf);

impl Exchange {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("flashcube-peers-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|e| unusable(&path, e))?;
        Ok(Self(path))
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Root mean square of `out - exact`; infinite when elements are missing.
fn rmse(out: &[f32], exact: &[f64]) -> f64 {
    if out.len() != exact.len() {
        return f64::INFINITY;
    }
    let squares = out
        .iter()
        .zip(exact)
        .map(|(&x, &y)| (f64::from(x) - y).powi(2));
    (squares.sum::<f64>() / exact.len().max(1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rmse_is_a_root_mean_square() {
        assert_eq!(rmse(&[1.0, 4.0], &[1.0, 1.0]), (4.5f64).sqrt());
        assert_eq!(rmse(&[1.0], &[1.0, 1.0]), f64::INFINITY);
        assert!(rmse(&[f32::NAN], &[0.0]).is_nan());
    }
}
