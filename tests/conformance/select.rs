//! Selection within quotas, against a sort.

use std::sync::LazyLock;

use lrmoe::DType::{F32, U32};
use lrmoe::kernel::{NONE, SELECT_STATS, Select, SelectRule};
use lrmoe::rng::{PairKey, PairStream};

use crate::support::oracle_select::{Candidate, pair_weight, priority, systematic, take_highest};
use crate::support::rng::Rng;
use crate::table::{Case, Slot, Want, exactly, integers, near, offsets};

static STREAM: LazyLock<PairStream> =
    LazyLock::new(|| PairStream::new(&PairKey { seed: 7, step: 3, call_id: 1, layer: 2 }));

const INF: f32 = f32::INFINITY;
const MIXED: SelectRule = SelectRule::Mixed { certain: 0.5 };

#[derive(Clone)]
struct Pick {
    name: String,
    rule: SelectRule,
    counts: Vec<usize>,
    quotas: Vec<u32>,
    top_k: usize,
    spare: usize,
    cap: f32,
    first_token: u64,
    own_ids: bool,
    /// Keys of the tokens are random below this.
    keys: usize,
    edit: fn(&mut [f32]),
}

fn table() -> Vec<Pick> {
    let p = |name: &str, rule, counts: &[usize], quotas: &[u32]| Pick {
        name: name.to_owned(),
        rule,
        counts: counts.to_vec(),
        quotas: quotas.to_vec(),
        top_k: 2,
        spare: 0,
        cap: INF,
        first_token: 0,
        own_ids: true,
        keys: 4,
        edit: |_| {},
    };
    let mut table = vec![
        Pick { own_ids: false, first_token: 1 << 40, ..p("first token", SelectRule::Unbiased, &[9, 8], &[4, 5]) },
        Pick {
            own_ids: false,
            first_token: u64::MAX - 2,
            ..p("token ids wrap", SelectRule::Unbiased, &[9, 8], &[4, 5])
        },
        Pick { cap: 1.25, ..p("weight cap", SelectRule::Unbiased, &[20, 30], &[5, 6]) },
        Pick { cap: 1.0, ..p("weight cap of one", MIXED, &[20, 30], &[5, 6]) },
        Pick { cap: 1.25, ..p("systematic weight cap", SelectRule::Systematic, &[20, 30], &[5, 6]) },
        Pick {
            own_ids: false,
            first_token: u64::MAX - 2,
            keys: 1,
            ..p("systematic token ids wrap", SelectRule::Systematic, &[9, 8], &[4, 5])
        },
        Pick { keys: 1, ..p("systematic one key", SelectRule::Systematic, &[40, 30], &[9, 20]) },
        Pick { keys: 1 << 32, ..p("systematic keys of any size", SelectRule::Systematic, &[40, 30], &[9, 20]) },
        p("mixed all certain", SelectRule::Mixed { certain: 1.0 }, &[9, 8], &[4, 5]),
        p("mixed none certain", SelectRule::Mixed { certain: 0.0 }, &[9, 8], &[4, 5]),
        p("mixed rounds down", SelectRule::Mixed { certain: 0.49 }, &[9, 8], &[4, 1]),
    ];
    let rules = [
        (SelectRule::TopQ, "top"),
        (SelectRule::Systematic, "systematic"),
        (SelectRule::Unbiased, "unbiased"),
        (MIXED, "mixed"),
    ];
    for (rule, label) in rules {
        let q = |text: &str, counts: &[usize], quotas: &[u32]| p(&format!("{label} {text}"), rule, counts, quotas);
        table.extend([
            q("typical", &[9, 0, 13, 5], &[4, 3, 6, 2]),
            Pick { spare: 5, top_k: 8, ..q("large", &[700, 0, 411, 3], &[200, 10, 17, 2]) },
            q("quota 0", &[9, 4], &[0, 0]),
            q("quota 1", &[9, 4], &[1, 1]),
            q("quota of the load", &[9, 4], &[9, 4]),
            q("quota above the load", &[9, 4], &[20, 100]),
            q("one below the load", &[9, 4], &[8, 3]),
            q("one row", &[1], &[1]),
            Pick { spare: 2, ..q("no rows", &[0, 0], &[3, 0]) },
            q("no experts", &[], &[]),
            Pick { edit: |s| s.fill(1.5), ..q("equal scores", &[9, 8], &[4, 5]) },
            Pick { edit: |s| s[..6].fill(INF), ..q("more infinite scores than the quota", &[9, 8], &[4, 5]) },
            Pick { edit: |s| s[..4].fill(INF), ..q("as many infinite scores as the quota", &[9, 8], &[4, 5]) },
            Pick { edit: |s| s.fill(INF), ..q("all infinite", &[9, 8], &[4, 5]) },
            Pick { edit: |s| s[1] = INF, ..q("one infinite", &[9, 8], &[4, 5]) },
            Pick { edit: |s| s[2..7].fill(0.0), ..q("not eligible", &[9, 8], &[6, 5]) },
            Pick { edit: |s| s.fill(0.0), ..q("none eligible", &[9, 8], &[6, 5]) },
            Pick {
                edit: |s| s.iter_mut().for_each(|s| *s *= 1e-38),
                ..q("scores near the smallest", &[9, 8], &[4, 5])
            },
            Pick { edit: |s| s.iter_mut().for_each(|s| *s *= 3e37), ..q("scores near the largest", &[9, 8], &[4, 5]) },
            Pick { edit: |s| s[3] *= 1e20, ..q("one huge score", &[9, 8], &[4, 5]) },
            Pick {
                edit: |s| s.iter_mut().enumerate().for_each(|(i, s)| *s = 0.5f32.powi(i as i32 % 60)),
                ..q("falling powers of two", &[60, 60], &[20, 7])
            },
            Pick { edit: |s| s.fill(f32::from_bits(1)), ..q("all the smallest", &[9, 8], &[4, 5]) },
            Pick {
                edit: |s| s.iter_mut().skip(1).step_by(2).for_each(|s| *s = f32::from_bits(3)),
                ..q("some the smallest", &[9, 8], &[4, 5])
            },
            Pick { edit: |s| s.fill(f32::MAX), ..q("all the largest", &[9, 8], &[4, 5]) },
            Pick {
                edit: |s| s.iter_mut().step_by(2).for_each(|s| *s *= 1e-30),
                ..q("scores of very different size", &[9, 8], &[4, 5])
            },
        ]);
    }
    table
}

fn select(p: &Pick) -> Case {
    let (mut case, mut rng) = (Case::new(&p.name), Rng::new(71));
    let (experts, used) = (p.counts.len(), p.counts.iter().sum::<usize>());
    let total = used + p.spare;
    // Some pairs belong to no row, as those of masked tokens.
    let tokens = total.div_ceil(p.top_k) + 2;
    let pairs = tokens * p.top_k;
    let mut order: Vec<u32> = (0..pairs as u32).collect();
    (1..order.len()).rev().for_each(|i| order.swap(i, rng.below(i + 1)));
    let mut scores: Vec<f32> = (0..total).map(|_| rng.normal().exp() as f32).collect();
    (p.edit)(&mut scores[..used]);
    scores[used..].fill(f32::NAN);
    order.truncate(used);
    let mut pair_of_row = order.clone();
    pair_of_row.resize(total, u32::MAX);
    let g: Vec<f32> = (0..pairs).map(|_| rng.normal() as f32).collect();
    // Neither ascending nor below 2^32. Random rows put some tokens twice at one expert, where the slot decides.
    let ids: Vec<u64> = (0..tokens as u64).map(|t| ((t * 7 + 3) % 11) << 32 | (tokens as u64 - t)).collect();
    let words: Vec<u32> = ids.iter().flat_map(|id| [*id as u32, (id >> 32) as u32]).collect();
    let keys: Vec<u32> = (0..tokens).map(|_| rng.below(p.keys) as u32).collect();
    let starts = offsets(&p.counts);
    let mean = |e: usize| {
        let own = &scores[starts[e] as usize..starts[e + 1] as usize];
        let finite: Vec<f64> = own.iter().filter(|s| **s > 0.0 && s.is_finite()).map(|&s| s.into()).collect();
        if finite.is_empty() { 0.0f32 } else { (finite.iter().sum::<f64>() / finite.len() as f64) as f32 }
    };
    let means: Vec<f32> = (0..experts).map(mean).collect();
    let capacity: usize = p.quotas.iter().map(|&q| q as usize).sum();
    let args = Select {
        rows: total,
        experts,
        top_k: p.top_k,
        capacity,
        rule: p.rule,
        weight_cap: p.cap,
        stream: *STREAM,
        first_token: p.first_token,
        score: case.f32("score", &scores),
        mean: case.f32("mean", &means),
        quotas: case.u32("quotas", &p.quotas),
        pair_of_row: case.u32("pair_of_row", &pair_of_row),
        offsets: case.u32("offsets", &starts),
        weights: case.f32("weights", &g),
        token_ids: case.optional_u32("token_ids", p.own_ids.then_some(&words)),
        order: case.optional_u32("order", (p.rule == SelectRule::Systematic).then_some(&keys)),
        kept_offsets: case.out("kept_offsets", U32, experts + 1),
        row: case.out("row", U32, capacity),
        pair: case.out("pair", U32, capacity),
        weight: case.out("weight", F32, capacity),
        scale: case.out("scale", F32, capacity),
        kept_of_pair: case.out_exact("kept_of_pair", U32, pairs),
        stats: case.out("stats", F32, experts * SELECT_STATS),
    };
    let outputs = args.clone();
    case.run(args);

    let mut row_of_pair = vec![usize::MAX; pairs];
    order.iter().enumerate().for_each(|(row, &pair)| row_of_pair[pair as usize] = row);
    let (mut kept, mut counts, mut stats) = (Vec::new(), Vec::new(), Vec::new());
    for e in 0..experts {
        let rows = starts[e] as usize..starts[e + 1] as usize;
        let candidate = |row: usize| {
            let (pair, token) = (order[row] as usize, order[row] as usize / p.top_k);
            let token_id = if p.own_ids { ids[token] } else { p.first_token.wrapping_add(token as u64) };
            Candidate { pair, expert: e, token_id, slot: pair % p.top_k, score: scores[row] }
        };
        let eligible: Vec<Candidate> = rows.filter(|&row| scores[row] > 0.0).map(candidate).collect();
        let quota = eligible.len().min(p.quotas[e] as usize);
        let certain = match p.rule {
            SelectRule::TopQ | SelectRule::Systematic => quota,
            SelectRule::Unbiased => 0,
            SelectRule::Mixed { certain } if certain < 1.0 && quota < eligible.len() => {
                ((f64::from(certain) * quota as f64).floor() as usize).min(quota.saturating_sub(2))
            }
            SelectRule::Mixed { .. } => quota,
        };
        let (sure, rest) = take_highest(&eligible, certain, |c| c.score);
        let key = |c: &Candidate| priority(c.score, STREAM.uniform(e as u32, c.token_id));
        let (drawn, left) = take_highest(&rest, quota - certain, key);
        let tau = left.first().map_or(0.0, key);
        let weighted = drawn.iter().map(|c| (c, pair_weight(c.score, tau)));
        let by_keys = || systematic(&eligible, quota, |c| keys[c.pair / p.top_k], STREAM.expert_bits(e as u32));
        let by_priority = || sure.iter().map(|c| (*c, 1.0)).chain(weighted.map(|(c, w)| (*c, w))).collect();
        let all: Vec<(Candidate, f64)> = if p.rule == SelectRule::Systematic { by_keys() } else { by_priority() };
        let cap = f64::from(p.cap);
        let weights = || all.iter().map(|(_, w)| w.min(cap));
        let relative = |c: &Candidate| f64::from(c.score) / f64::from(means[e]);
        let columns = [
            all.iter().filter(|(c, _)| c.score.is_finite()).map(|(c, _)| relative(c)).sum(),
            weights().sum(),
            weights().map(|w| w * w).sum(),
            weights().fold(0.0, f64::max),
            all.iter().filter(|(_, w)| *w > cap).map(|(c, w)| (w - cap) * relative(c)).sum(),
        ];
        // What the cap removes is a difference.
        let removed_size: f64 = all.iter().filter(|(_, w)| *w > cap).map(|(c, w)| w * relative(c)).sum();
        let sizes = [0.0, 0.0, 0.0, 0.0, removed_size];
        stats.extend(columns.iter().zip(sizes).map(|(&value, size)| near(value, size, 6.0)));
        counts.push(all.len());
        let mut rows: Vec<(usize, f64)> = all.iter().map(|(c, w)| (row_of_pair[c.pair], w.min(cap))).collect();
        rows.sort_by_key(|&(row, _)| row);
        kept.extend(rows);
    }
    let mut of_pair = vec![NONE; pairs];
    for (at, &(row, _)) in kept.iter().enumerate() {
        of_pair[order[row] as usize] = at as u32;
    }
    let pair = |&(row, _): &(usize, f64)| order[row];
    case.want(outputs.kept_offsets, integers(&offsets(&counts)));
    case.want(outputs.row, integers(&kept.iter().map(|&(row, _)| row as u32).collect::<Vec<_>>()));
    case.want(outputs.pair, integers(&kept.iter().map(pair).collect::<Vec<_>>()));
    let whole = |w: f64| if w == 1.0 { exactly(&[1.0])[0] } else { near(w, w, 1.0) };
    case.want(outputs.weight, kept.iter().map(|&(_, w)| whole(w)).collect());
    let scaled = |(w, g): (f64, f32)| if w == 1.0 { Want::Bits(g.to_bits()) } else { near(w * f64::from(g), 0.0, 2.0) };
    case.want(outputs.scale, kept.iter().map(|k| scaled((k.1, g[pair(k) as usize]))).collect());
    case.want(outputs.kept_of_pair, integers(&of_pair));
    case.want(outputs.stats, stats);
    case
}

fn refusals() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut refuse = |name: &str, fragments: &[&'static str], change: fn(&mut Case, Select<Slot>) -> Select<Slot>| {
        let mut case = Case::new(name);
        let args = Select {
            rows: 4,
            experts: 2,
            top_k: 2,
            capacity: 3,
            rule: SelectRule::Unbiased,
            weight_cap: INF,
            stream: *STREAM,
            first_token: 0,
            score: case.f32("score", &[1.0; 4]),
            mean: case.f32("mean", &[1.0; 2]),
            quotas: case.u32("quotas", &[1, 2]),
            pair_of_row: case.u32("pair_of_row", &[0, 1, 2, 3]),
            offsets: case.u32("offsets", &[0, 1, 4]),
            weights: case.f32("weights", &[1.0; 4]),
            token_ids: None,
            order: None,
            kept_offsets: case.out("kept_offsets", U32, 3),
            row: case.out("row", U32, 3),
            pair: case.out("pair", U32, 3),
            weight: case.out("weight", F32, 3),
            scale: case.out("scale", F32, 3),
            kept_of_pair: case.out_exact("kept_of_pair", U32, 4),
            stats: case.out("stats", F32, 2 * SELECT_STATS),
        };
        let args = change(&mut case, args);
        case.run(args);
        cases.push(case.refused(fragments));
    };
    refuse("capacity too small", &["quotas", "3", "2"], |_, a| Select { capacity: 2, ..a });
    refuse("short row list", &["`row`"], |case, a| Select { row: case.out_exact("row", U32, 2), ..a });
    refuse("pair out of range", &["pair_of_row", "4"], |case, a| Select {
        pair_of_row: case.u32("pair_of_row", &[0, 1, 4, 3]),
        ..a
    });
    refuse("NONE as pair", &["pair_of_row"], |case, a| Select {
        pair_of_row: case.u32("pair_of_row", &[0, 1, NONE, 3]),
        ..a
    });
    refuse("offsets fall", &["offsets"], |case, a| Select { offsets: case.u32("offsets", &[0, 3, 2]), ..a });
    refuse("offsets past the rows", &["offset"], |case, a| Select { offsets: case.u32("offsets", &[0, 3, 5]), ..a });
    refuse("k of zero", &["top_k", "0"], |_, a| Select { top_k: 0, ..a });
    refuse("short quotas", &["`quotas`"], |case, a| Select { quotas: case.u32("quotas", &[1]), ..a });
    refuse("short token ids", &["`token_ids`"], |case, a| Select {
        token_ids: Some(case.u32("token_ids", &[0; 3])),
        ..a
    });
    refuse("systematic without keys", &["`order`", "systematic"], |_, a| Select { rule: SelectRule::Systematic, ..a });
    refuse("short keys", &["`order`"], |case, a| Select {
        rule: SelectRule::Systematic,
        order: Some(case.u32("order", &[0])),
        ..a
    });
    refuse("float keys", &["`order`", "u32"], |case, a| Select {
        rule: SelectRule::Systematic,
        order: Some(case.f32("order", &[0.0; 2])),
        ..a
    });
    refuse("short weights", &["`weights`"], |case, a| Select { weights: case.f32("weights", &[1.0; 3]), ..a });
    refuse("float quotas", &["`quotas`", "u32"], |case, a| Select { quotas: case.f32("quotas", &[1.0; 2]), ..a });
    refuse("aliased outputs", &["in use"], |_, a| Select { row: a.pair, ..a });
    refuse("experts beyond the address space", &[""], |_, a| Select { experts: usize::MAX, ..a });
    cases
}

/// All cases of this family.
pub fn cases() -> Vec<Case> {
    table().iter().map(select).chain(refusals()).collect()
}
