//! The gate: scores, selection and combine weights.

use lrmoe::DType::{F32, U32};
use lrmoe::config::ScoringFunc;
use lrmoe::kernel::{Gate, GateRule, NONE};

use crate::devices::Runner;
use crate::support::oracle::{combine_weights, order_descending, select_experts, sigmoid, softmax};
use crate::support::oracle_config::{OracleConfig, Scoring};
use crate::support::rng::Rng;
use crate::table::{Case, EXP, Property, Slot, bits, exactly, integers, near, wide};

/// One call of the gate.
#[derive(Clone)]
pub struct Call {
    pub name: String,
    pub tokens: usize,
    pub experts: usize,
    pub top_k: usize,
    pub rule: GateRule,
    pub logits: Vec<f32>,
    pub bias: Option<Vec<f32>>,
    pub mask: Option<Vec<u32>>,
}

/// Softmax, no groups, weights as they are.
pub const SOFTMAX: GateRule = GateRule {
    scoring: ScoringFunc::Softmax,
    n_group: 1,
    topk_group: 1,
    normalise: false,
    norm_eps: 0.0,
    scaling: 1.0,
};

/// As in GLM-4.5 and DeepSeek-V3.
pub const SIGMOID: GateRule =
    GateRule { scoring: ScoringFunc::Sigmoid, normalise: true, norm_eps: 1e-20, scaling: 2.5, ..SOFTMAX };

impl Call {
    /// With normal logits.
    pub fn random(name: &str, tokens: usize, experts: usize, top_k: usize, rule: GateRule) -> Self {
        let mut rng = Rng::new(51);
        let logits = (0..tokens * experts).map(|_| (1.5 * rng.normal()) as f32).collect();
        Self { name: name.to_owned(), tokens, experts, top_k, rule, logits, bias: None, mask: None }
    }

    /// With these logits, one token.
    fn token(name: &str, logits: &[f32], top_k: usize, rule: GateRule) -> Self {
        let call = Self::random(name, 1, logits.len(), top_k, rule);
        Self { logits: logits.to_vec(), ..call }
    }

    fn biased(self, bias: &[f32]) -> Self {
        Self { bias: Some(bias.to_vec()), ..self }
    }

    /// Masks every token whose number leaves no rest by 3, and spoils its logits.
    pub fn masked(mut self) -> Self {
        let mask: Vec<u32> = (0..self.tokens as u32).map(|t| u32::from(t % 3 != 0) * (t + 1)).collect();
        for t in (0..self.tokens).filter(|&t| mask[t] == 0) {
            self.logits[t * self.experts..(t + 1) * self.experts].fill(f32::NAN);
        }
        Self { mask: Some(mask), ..self }
    }

    pub fn live(&self, t: usize) -> bool {
        self.mask.as_ref().is_none_or(|mask| mask[t] != 0)
    }

    pub fn row(&self, t: usize) -> Vec<f64> {
        wide(&self.logits[t * self.experts..(t + 1) * self.experts])
    }

    pub fn config(&self) -> OracleConfig {
        OracleConfig {
            hidden_size: 1,
            moe_intermediate_size: 1,
            num_experts: self.experts,
            top_k: self.top_k,
            scoring: match self.rule.scoring {
                ScoringFunc::Softmax => Scoring::Softmax,
                ScoringFunc::Sigmoid => Scoring::Sigmoid,
            },
            norm_topk_prob: self.rule.normalise,
            norm_eps: self.rule.norm_eps.into(),
            routed_scaling_factor: self.rule.scaling.into(),
            n_group: self.rule.n_group,
            topk_group: self.rule.topk_group,
        }
    }

    pub fn scores(&self, t: usize) -> Vec<f64> {
        match self.rule.scoring {
            ScoringFunc::Softmax => softmax(&self.row(t)),
            ScoringFunc::Sigmoid => self.row(t).into_iter().map(sigmoid).collect(),
        }
    }

    /// Selected experts of a token.
    pub fn selected(&self, t: usize) -> Vec<usize> {
        let bias = self.bias.as_deref().map(wide);
        // A softmax keeps the order of the logits, also where one of them makes every probability NaN.
        if self.rule.scoring == ScoringFunc::Softmax && bias.is_none() && self.rule.n_group == 1 {
            return order_descending(&self.row(t))[..self.top_k].to_vec();
        }
        select_experts(&self.config(), &self.scores(t), bias.as_deref())
    }

    /// Roundings of a score: those of `exp`, and of its argument.
    pub fn units(&self, t: usize) -> f64 {
        let finite = self.row(t).into_iter().filter(|l| l.is_finite());
        let (low, high) = finite.fold((0.0f64, 0.0f64), |(low, high), l| (low.min(l), high.max(l)));
        EXP + 2.0 * (high - low).min(200.0)
    }

    fn case(&self) -> Case {
        let mut case = Case::new(self.name.clone());
        let args = self.gate(&mut case);
        let (ids, weights) = (args.ids, args.weights);
        case.run(args);
        let (mut want_ids, mut want_weights) = (Vec::new(), Vec::new());
        for t in 0..self.tokens {
            if !self.live(t) {
                want_ids.extend(integers(&vec![NONE; self.top_k]));
                want_weights.extend(exactly(&vec![0.0; self.top_k]));
                continue;
            }
            let selected = self.selected(t);
            want_ids.extend(integers(&selected.iter().map(|&e| e as u32).collect::<Vec<_>>()));
            for g in combine_weights(&self.config(), &self.scores(t), &selected) {
                // A score below the normal range of f32 may be flushed.
                want_weights.push(near(g, g.abs() + 1e-30, self.units(t)));
            }
        }
        case.want(ids, want_ids);
        case.want(weights, want_weights);
        case
    }

    fn gate(&self, case: &mut Case) -> Gate<Slot> {
        let pairs = self.tokens * self.top_k;
        Gate {
            tokens: self.tokens,
            experts: self.experts,
            top_k: self.top_k,
            rule: self.rule,
            logits: case.f32("logits", &[&self.logits[..], &vec![f32::NAN; self.experts]].concat()),
            bias: case.optional_f32("bias", self.bias.as_deref()),
            mask: case.optional_u32("mask", self.mask.as_deref()),
            ids: case.out("ids", U32, pairs),
            weights: case.out("weights", F32, pairs),
        }
    }
}

fn calls() -> Vec<Call> {
    let grouped = GateRule { n_group: 4, topk_group: 2, ..SIGMOID };
    let normalised = GateRule { normalise: true, ..SOFTMAX };
    let c = Call::random;
    let ramp = |experts: usize| -> Vec<f32> { (0..experts).map(|e| (e as f32 * 0.37).sin() * 0.5).collect() };
    let step = f32::EPSILON; // 1.2e-7
    let mut far = vec![0.0; 64];
    (far[3], far[60]) = (0.25, 0.25 + step);
    let mut close = vec![-1.0; 64];
    (close[3], close[60], close[61]) = (0.7, f32::from_bits(0.7f32.to_bits() + 2), 0.7);
    let (mut special_groups, mut infinite) = (vec![0.0; 16], vec![0.0; 16]);
    special_groups[11] = f32::NAN;
    (infinite[0], infinite[9]) = (f32::INFINITY, f32::INFINITY);
    vec![
        c("softmax", 50, 8, 2, SOFTMAX),
        c("softmax normalised and scaled", 50, 8, 3, GateRule { scaling: 1.7, ..normalised }),
        c("large", 300, 128, 8, normalised),
        c("sigmoid", 50, 8, 2, SIGMOID),
        c("sigmoid not normalised", 50, 7, 2, GateRule { normalise: false, ..SIGMOID }),
        c("sigmoid bias", 50, 16, 4, SIGMOID).biased(&ramp(16)),
        c("softmax bias", 50, 16, 4, normalised).biased(&ramp(16)),
        c("groups", 80, 16, 4, grouped).biased(&ramp(16)),
        c("groups of softmax", 80, 16, 3, GateRule { n_group: 8, topk_group: 3, ..normalised }),
        c("large groups masked", 200, 160, 8, GateRule { n_group: 8, topk_group: 4, ..SIGMOID })
            .biased(&ramp(160))
            .masked(),
        c("groups of one", 20, 6, 3, GateRule { n_group: 6, topk_group: 4, ..SIGMOID }),
        c("all groups", 20, 8, 3, GateRule { topk_group: 4, ..grouped }),
        c("fault 22 negative biased scores beat the fill of masked groups", 60, 16, 8, grouped).biased(&[-2.0; 16]),
        c("fault 27 mask", 64, 8, 2, normalised).masked(),
        c("one token", 1, 8, 2, SOFTMAX),
        c("no tokens", 0, 8, 2, SOFTMAX),
        c("one expert", 5, 1, 1, normalised),
        c("k = E", 9, 5, 5, SIGMOID),
        c("odd sizes", 65, 13, 5, normalised),
        c("hundreds of experts", 5, 700, 10, SIGMOID),
        c("thousands of experts", 3, 5000, 6, normalised),
        c("thousands of experts in groups", 3, 4096, 8, GateRule { n_group: 64, topk_group: 16, ..SIGMOID })
            .biased(&ramp(4096)),
        Call::token("ties go to the lower index", &[0.5, 1.0, 0.5, 1.0, 0.5, 1.0], 4, SOFTMAX),
        Call::token("all equal", &[0.25; 9], 4, SIGMOID),
        Call::token("zeros of both signs are equal", &[-0.0, 0.0, -0.0, 0.0], 3, SIGMOID),
        Call::token("tied groups", &[0.5; 16], 4, grouped),
        Call::token("fault 23 biased scores 1e-7 apart", &[0.0; 64], 2, SIGMOID).biased(&far),
        Call::token("fault 23 logits 1e-7 apart", &close, 3, SOFTMAX),
        Call::token("logits that differ where probabilities underflow", &[0.0, -150.0, -149.0, -151.0], 3, SOFTMAX),
        Call::token("NaN first", &[1.0, f32::NAN, 9.0, f32::NAN], 3, SOFTMAX),
        Call::token(
            "NaN first among sigmoids",
            &[1.0, f32::NAN, 9.0, 2.0],
            3,
            GateRule { normalise: false, ..SIGMOID },
        ),
        Call::token("infinity against NaN", &[f32::INFINITY, f32::NAN, 3.0, f32::NEG_INFINITY], 3, SIGMOID),
        Call::token("NaN before infinity", &[3.0, f32::INFINITY, f32::NAN, f32::INFINITY], 3, SOFTMAX),
        Call::token("NaN before an infinite bias", &[0.0, f32::NAN, 0.0, 1.0], 3, SIGMOID).biased(&[
            f32::INFINITY,
            0.0,
            f32::INFINITY,
            f32::NAN,
        ]),
        Call::token("a group of NaN before infinite ones", &special_groups, 2, GateRule { topk_group: 1, ..grouped })
            .biased(&infinite),
        Call::token("infinite bias", &[0.0; 4], 2, SIGMOID).biased(&[f32::NEG_INFINITY, 0.0, f32::INFINITY, 0.5]),
        Call::token("minus infinity", &[f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, 1.0], 3, SOFTMAX),
        Call::token("huge logits", &[3e38, -3e38, 1e38, 0.0], 3, SOFTMAX),
        Call::token("subnormal logits", &[1e-40, 2e-40, -1e-40, 0.0], 4, SOFTMAX),
        Call {
            logits: [[0.3, f32::NAN, 0.1], [0.3, 0.2, 0.1]].concat(),
            ..c("NaN stays in its row", 2, 3, 2, SOFTMAX)
        },
    ]
}

fn refusals() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut refuse = |name: &str, fragments: &[&'static str], change: fn(&mut Case, Gate<Slot>) -> Gate<Slot>| {
        let mut case = Case::new(name);
        let args = Call::random("", 3, 8, 2, SOFTMAX).gate(&mut case);
        let args = change(&mut case, args);
        case.run(args);
        cases.push(case.refused(fragments));
    };
    refuse("k above E", &["top_k", "9", "8"], |_, a| Gate { top_k: 9, ..a });
    refuse("k of zero", &["top_k", "0"], |_, a| Gate { top_k: 0, ..a });
    refuse("k above the experts of the groups", &["top_k", "3", "2"], |_, a| Gate {
        top_k: 3,
        rule: GateRule { n_group: 4, topk_group: 1, ..SOFTMAX },
        ..a
    });
    refuse("groups that do not divide", &["n_group", "3"], |_, a| Gate {
        rule: GateRule { n_group: 3, ..SOFTMAX },
        ..a
    });
    refuse("no groups", &["n_group", "0"], |_, a| Gate { rule: GateRule { n_group: 0, ..SOFTMAX }, ..a });
    refuse("more groups kept than there are", &["topk_group", "5"], |_, a| Gate {
        rule: GateRule { n_group: 4, topk_group: 5, ..SOFTMAX },
        ..a
    });
    refuse("short logits", &["`logits`"], |_, a| Gate { tokens: 5, ..a });
    refuse("short bias", &["`bias`"], |case, a| Gate { bias: Some(case.f32("bias", &[0.0; 7])), ..a });
    refuse("short mask", &["`mask`"], |case, a| Gate { mask: Some(case.u32("mask", &[1; 2])), ..a });
    refuse("float mask", &["`mask`", "u32"], |case, a| Gate { mask: Some(case.f32("mask", &[1.0; 3])), ..a });
    refuse("short ids", &["`ids`"], |case, a| Gate { ids: case.out_exact("ids", U32, 5), ..a });
    refuse("integer logits", &["`logits`", "f32"], |case, a| Gate { logits: case.u32("logits", &[0; 24]), ..a });
    refuse("in place", &["in use"], |_, a| Gate { weights: a.logits, ..a });
    refuse("tokens beyond the address space", &["logits"], |_, a| Gate { tokens: usize::MAX / 2, ..a });
    refuse("experts beyond the address space", &[""], |_, a| Gate { experts: usize::MAX, ..a });
    refuse("experts and k beyond the address space without tokens", &[""], |_, a| Gate {
        tokens: 0,
        experts: usize::MAX,
        top_k: usize::MAX,
        ..a
    });
    cases
}

/// All cases of this family.
pub fn cases() -> Vec<Case> {
    calls().iter().map(Call::case).chain(refusals()).collect()
}

/// All properties of this family.
pub fn properties() -> Vec<Property> {
    vec![Property { name: "gate::token_bits_stand_alone", check: stand_alone }]
}

/// A token's ids and weights have the same bits alone and among others, in any order.
fn stand_alone(runner: &dyn Runner) -> Result<(), String> {
    for rule in [SOFTMAX, SIGMOID, GateRule { n_group: 4, topk_group: 2, ..SIGMOID }] {
        let call = Call::random("together", 150, 16, 3, rule);
        let run = |call: &Call| -> Result<Vec<Vec<u32>>, String> {
            let mut case = Case::new("tokens");
            let args = call.gate(&mut case);
            let (ids, weights, k) = (args.ids, args.weights, call.top_k);
            case.run(args);
            let after = runner.run(&case).map_err(|e| e.to_string())?;
            let row = |t: usize| {
                [ids, weights].iter().flat_map(|s| (t * k..(t + 1) * k).map(|i| bits(&after[s.0], i))).collect()
            };
            Ok((0..call.tokens).map(row).collect())
        };
        let together = run(&call)?;
        let logits: Vec<f32> = call.logits.chunks(call.experts).rev().flatten().copied().collect();
        let mut backwards = run(&Call { logits, ..call.clone() })?;
        backwards.reverse();
        if backwards != together {
            return Err("depends on the order of tokens".into());
        }
        for t in [0, 63, 64, 149] {
            let logits = call.logits[t * call.experts..(t + 1) * call.experts].to_vec();
            if run(&Call { logits, tokens: 1, ..call.clone() })?[0] != together[t] {
                return Err(format!("token {t} alone differs"));
            }
        }
    }
    Ok(())
}
