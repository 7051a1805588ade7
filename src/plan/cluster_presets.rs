//! Common machines.

use super::cluster::{ClusterSpec, Link};
use crate::{Error, Result};

/// Shares of a data sheet's peak that the presets count on: grouped GEMMs of uneven groups, device memory, links and NICs. They
/// are assumptions of planning; where a machine was measured, its own rates belong in a file.
const GEMM: f64 = 0.5;
const MEMORY: f64 = 0.8;
const LINK: f64 = 0.75;
/// Ten kernel launches and a synchronisation.
const LAUNCH: f64 = 40e-6;
/// Start of an all-to-all inside a node, and between nodes.
const INTRA_LATENCY: f64 = 15e-6;
const INTER_LATENCY: f64 = 30e-6;

const GB: f64 = 1e9;
const TERA: f64 = 1e12;

impl ClusterSpec {
    /// Names that [`preset`](Self::preset) knows.
    pub const PRESETS: &[&str] = &["8xh100", "8xa100", "a100-100g", "4x24gb-pcie", "laptop"];

    /// A common machine. All take half of the data sheet's dense 16-bit rate for grouped GEMMs, 0.8 of its memory bandwidth and 0.75 of
    /// its links and NICs; latencies (15 microseconds in a node, 30 between nodes) and 40 microseconds a wave are estimates. Nothing
    /// is reserved for the host: what the rest of a model takes depends on the model.
    ///
    /// | name | ranks | data sheet |
    /// |---|---|---|
    /// | `8xh100` | 8, one node | H100 SXM: 989 TFLOP/s bf16, 80 GB at 3.35 TB/s, NVLink 4 with 450 GB/s each way, PCIe 5.0 x16 with 64 GB/s; a 400 Gb/s NIC for each GPU |
    /// | `8xa100` | 8, one node | A100 SXM: 312 TFLOP/s bf16, 80 GB at 2.039 TB/s, NVLink 3 with 300 GB/s each way, PCIe 4.0 x16 with 32 GB/s; a 200 Gb/s NIC for each GPU |
    /// | `a100-100g` | 16, one a node | A100 as above with one 100 Gb/s NIC each: the machines that SYMI was evaluated on |
    /// | `4x24gb-pcie` | 4, one node | RTX 4090: 165 TFLOP/s bf16 with f32 sums, 24 GB at 1.008 TB/s, PCIe 4.0 x16 with 32 GB/s, no peer access, so that a copy between cards crosses two such links one after the other; one 100 Gb/s NIC for all four |
    /// | `laptop` | 1 | 8 cores at 3 GHz with two 256-bit FMA units: 768 GFLOP/s f32; two channels of DDR5-5600: 89.6 GB/s; 8 GB of its memory |
    ///
    /// # Errors
    /// [`Error::Argument`] listing [`PRESETS`](Self::PRESETS) for any other name.
    pub fn preset(name: &str) -> Result<Self> {
        let gpu = |ranks, ranks_per_node, tflops: f64, bytes_per_rank, [memory, intra, inter, host]: [f64; 4]| Self {
            ranks,
            ranks_per_node,
            bytes_per_rank,
            host_reserved_bytes: 0,
            gemm_flops: tflops * TERA * GEMM,
            copy_bytes_per_s: memory * GB * MEMORY,
            intra: Link { bytes_per_s: intra * GB * LINK, latency_s: INTRA_LATENCY },
            inter: Link { bytes_per_s: inter * GB * LINK, latency_s: INTER_LATENCY },
            host_bytes_per_s: host * GB * LINK,
            launch_s: LAUNCH,
        };
        match name {
            "8xh100" => Ok(gpu(8, 8, 989.0, 80_000_000_000, [3350.0, 450.0, 50.0, 64.0])),
            "8xa100" => Ok(gpu(8, 8, 312.0, 80_000_000_000, [2039.0, 300.0, 25.0, 32.0])),
            "a100-100g" => Ok(gpu(16, 1, 312.0, 80_000_000_000, [2039.0, 300.0, 12.5, 32.0])),
            "4x24gb-pcie" => Ok(gpu(4, 4, 165.0, 24_000_000_000, [1008.0, 16.0, 12.5 / 4.0, 32.0])),
            "laptop" => Ok(laptop()),
            _ => Err(Error::argument("preset", format!("`{name}`"), Self::PRESETS.join(", "))),
        }
    }

    /// The same machine with other numbers of ranks.
    #[must_use]
    pub fn with_ranks(self, ranks: usize, ranks_per_node: usize) -> Self {
        Self { ranks, ranks_per_node, ..self }
    }
}

/// A single rank has no links; theirs is the memory's rate for a copy, which reads and writes.
fn laptop() -> ClusterSpec {
    let copy_bytes_per_s = 89.6 * GB * MEMORY;
    let link = Link { bytes_per_s: copy_bytes_per_s / 2.0, latency_s: 1e-6 };
    ClusterSpec {
        ranks: 1,
        ranks_per_node: 1,
        bytes_per_rank: 8_000_000_000,
        host_reserved_bytes: 0,
        gemm_flops: 768.0 * GB * GEMM,
        copy_bytes_per_s,
        intra: link,
        inter: link,
        host_bytes_per_s: copy_bytes_per_s / 2.0,
        launch_s: 10e-6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid_and_named() {
        for name in ClusterSpec::PRESETS {
            let spec = ClusterSpec::preset(name).unwrap();
            spec.validate().unwrap();
            assert!(spec.intra.bytes_per_s >= spec.inter.bytes_per_s, "{name}");
            assert_eq!(spec.budget(), spec.bytes_per_rank);
        }
        let refused = ClusterSpec::preset("8xh200").unwrap_err().to_string();
        assert!(refused.contains("8xh200") && refused.contains("4x24gb-pcie"), "{refused}");
        let spec = ClusterSpec::preset("8xa100").unwrap().with_ranks(20, 8);
        assert_eq!((spec.ranks, spec.nodes()), (20, 3));
    }
}
