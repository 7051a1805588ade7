//! Budgets, pools and what is kept.

use libtest_mimic::Trial;
use lrmoe::memory::Category;
use lrmoe::{Backend, DType, Error, WgpuOptions};

use crate::support::backend as generic;
use crate::support::outcome::{Outcome, holds, refused, text};
use crate::support::step::{SMALL, bits};
use crate::{backend, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("memory::a_budget_of_a_few_kib", budgets),
        trial("memory::the_budget_refuses_before_the_driver", absurd),
        trial("memory::a_steady_state_allocates_nothing", steady),
        trial("memory::recordings_that_nobody_waits_for_do_not_pile_up", abandoned),
        trial("memory::sixteen_bit_uploads_keep_their_neighbours", odd_halves),
    ]
}

fn absurd() -> Outcome {
    let limited = backend(WgpuOptions { budget: Some(1 << 20), ..Default::default() })?;
    let error = refused("80 GB", limited.alloc("huge", DType::F32, 20 << 30, Category::Weights))?;
    holds(format!("`{error}` is the budget's"), matches!(error, Error::OutOfMemory { .. }))?;
    let free = backend(WgpuOptions::default())?;
    let beyond = usize::try_from(free.caps().max_buffer_bytes).map_err(text)? / 2;
    let error = refused("a buffer beyond the limit", free.alloc("huge", DType::F32, beyond, Category::Weights))?;
    let numbers = error.to_string().contains(&free.caps().max_buffer_bytes.to_string());
    holds(format!("`{error}` names the limit"), numbers)?;
    let report = free.memory().report();
    holds("nothing stays of it", (report.reserved, report.peak_total(), report.allocations) == (0, 0, 0))?;
    bits(&free, SMALL).map(drop)
}

fn budgets() -> Outcome {
    generic::budgets(|budget| backend(WgpuOptions { budget, ..Default::default() }))
}

fn abandoned() -> Outcome {
    generic::abandoned(&backend(WgpuOptions::default())?)
}

fn steady() -> Outcome {
    generic::steady(&backend(WgpuOptions::default())?, |backend| backend.shaders().len())
}

fn odd_halves() -> Outcome {
    generic::odd_halves(&backend(WgpuOptions::default())?)
}
