//! The machine that a plan is made for.

use serde::{Deserialize, Serialize};

pub use super::cluster_files::parse_bytes;
use crate::{Error, Result};

/// One kind of connection, as a single rank sees it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Bytes a second in each direction, all peers together.
    pub bytes_per_s: f64,
    /// Seconds until the first byte of a collective arrives.
    pub latency_s: f64,
}

/// Ranks, their memory and their speeds. All rates are what is reached in practice, not what a data sheet promises.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// R: processes, one device each.
    pub ranks: usize,
    /// Consecutive ranks with fast links between them. The last node may hold fewer.
    pub ranks_per_node: usize,
    /// Device memory of a rank.
    pub bytes_per_rank: u64,
    /// Part of it that the host application keeps for everything but the MoE layers.
    pub host_reserved_bytes: u64,
    /// Floating-point operations a second of grouped GEMMs in the compute type.
    pub gemm_flops: f64,
    /// Bytes a second that kernels read and write in device memory.
    pub copy_bytes_per_s: f64,
    /// Between ranks of a node.
    pub intra: Link,
    /// Between nodes. The ranks of a node pool their shares.
    pub inter: Link,
    /// Bytes a second between a device and its host's memory, each direction.
    pub host_bytes_per_s: f64,
    /// Fixed cost of one wave of one phase: launches and synchronisation, in seconds.
    pub launch_s: f64,
}

/// Rates that keep every predicted time finite.
const RATES: std::ops::RangeInclusive<f64> = 1e-3..=1e30;
/// The same of latencies, in seconds.
const LONGEST: f64 = 1e9;

impl ClusterSpec {
    /// Number of nodes, the last one perhaps not full.
    #[must_use]
    pub const fn nodes(&self) -> usize {
        self.ranks.div_ceil(if self.ranks_per_node == 0 { 1 } else { self.ranks_per_node })
    }

    /// The budget of a rank's MoE layers in bytes: its memory less what the host keeps.
    #[must_use]
    pub const fn budget(&self) -> u64 {
        self.bytes_per_rank.saturating_sub(self.host_reserved_bytes)
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::Argument`] naming the first field that is out of range.
    pub fn validate(&self) -> Result<()> {
        let bad = |field: &str, value: String, allowed: &str| {
            Err(Error::argument(format!("cluster.{field}"), value, allowed.to_owned()))
        };
        if self.ranks == 0 || u32::try_from(self.ranks).is_err() {
            return bad("ranks", self.ranks.to_string(), "1 to 4294967295");
        }
        if self.ranks_per_node == 0 {
            return bad("ranks_per_node", "0".into(), "1 or more");
        }
        if self.host_reserved_bytes > self.bytes_per_rank {
            let allowed = format!("at most bytes_per_rank {}", self.bytes_per_rank);
            return bad("host_reserved_bytes", self.host_reserved_bytes.to_string(), &allowed);
        }
        for (field, rate) in [
            ("gemm_flops", self.gemm_flops),
            ("copy_bytes_per_s", self.copy_bytes_per_s),
            ("intra.bytes_per_s", self.intra.bytes_per_s),
            ("inter.bytes_per_s", self.inter.bytes_per_s),
            ("host_bytes_per_s", self.host_bytes_per_s),
        ] {
            if !RATES.contains(&rate) {
                return bad(field, rate.to_string(), "1e-3 to 1e30 a second");
            }
        }
        for (field, time) in [
            ("intra.latency_s", self.intra.latency_s),
            ("inter.latency_s", self.inter.latency_s),
            ("launch_s", self.launch_s),
        ] {
            if !(0.0..=LONGEST).contains(&time) {
                return bad(field, time.to_string(), "0 to 1e9 seconds");
            }
        }
        Ok(())
    }
}
