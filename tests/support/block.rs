//! The parameters of one MoE block, generic over what a parameter is: a stored tensor, a matrix, a gradient.

/// The three projections of one SwiGLU expert.
#[derive(Debug, Clone, PartialEq)]
pub struct Swiglu<T> {
    /// W_gate, [I, H].
    pub gate: T,
    /// W_up, [I, H].
    pub up: T,
    /// W_down, [H, I].
    pub down: T,
}

impl<T> Swiglu<T> {
    /// The same projections with every parameter mapped.
    pub fn map<U>(&self, f: impl Fn(&T) -> U) -> Swiglu<U> {
        Swiglu { gate: f(&self.gate), up: f(&self.up), down: f(&self.down) }
    }

    /// The same projections with every parameter mapped; the first error ends it.
    pub fn try_map<U, E>(&self, f: impl Fn(&T) -> Result<U, E>) -> Result<Swiglu<U>, E> {
        Ok(Swiglu { gate: f(&self.gate)?, up: f(&self.up)?, down: f(&self.down)? })
    }

    /// (name, parameter) of the three projections.
    pub fn named(&self) -> [(&'static str, &T); 3] {
        [("gate", &self.gate), ("up", &self.up), ("down", &self.down)]
    }
}

/// All parameters of one MoE block, or one gradient for each.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockWeights<T> {
    /// Router weight, [E, H].
    pub router: T,
    /// Added to the scores for selection only, [E]. Has no gradient.
    pub correction_bias: Option<T>,
    /// The routed experts, E of them.
    pub experts: Vec<Swiglu<T>>,
    /// The shared expert, of its own width.
    pub shared: Option<Swiglu<T>>,
    /// Gate of the shared expert, [1, H].
    pub shared_gate: Option<T>,
}

impl<T> BlockWeights<T> {
    /// The same block with every parameter mapped.
    pub fn map<U>(&self, f: impl Fn(&T) -> U) -> BlockWeights<U> {
        BlockWeights {
            router: f(&self.router),
            correction_bias: self.correction_bias.as_ref().map(&f),
            experts: self.experts.iter().map(|e| e.map(&f)).collect(),
            shared: self.shared.as_ref().map(|s| s.map(&f)),
            shared_gate: self.shared_gate.as_ref().map(&f),
        }
    }

    /// The same block with every parameter mapped; the first error ends it.
    pub fn try_map<U, E>(&self, f: impl Fn(&T) -> Result<U, E>) -> Result<BlockWeights<U>, E> {
        Ok(BlockWeights {
            router: f(&self.router)?,
            correction_bias: self.correction_bias.as_ref().map(&f).transpose()?,
            experts: self.experts.iter().map(|e| e.try_map(&f)).collect::<Result<_, E>>()?,
            shared: self.shared.as_ref().map(|s| s.try_map(&f)).transpose()?,
            shared_gate: self.shared_gate.as_ref().map(&f).transpose()?,
        })
    }

    /// (name, parameter) of everything that has a gradient: `router`, `experts.3.gate`, `shared.down`, `shared_gate`.
    pub fn named(&self) -> Vec<(String, &T)> {
        let mut all = vec![("router".to_string(), &self.router)];
        for (e, expert) in self.experts.iter().enumerate() {
            all.extend(expert.named().map(|(name, w)| (format!("experts.{e}.{name}"), w)));
        }
        if let Some(shared) = &self.shared {
            all.extend(shared.named().map(|(name, w)| (format!("shared.{name}"), w)));
        }
        if let Some(gate) = &self.shared_gate {
            all.push(("shared_gate".to_string(), gate));
        }
        all
    }

    /// The trainable parameters, in the order of [`BlockWeights::named`], for writing.
    pub fn trainable_mut(&mut self) -> Vec<&mut T> {
        let mut all = vec![&mut self.router];
        for expert in self.experts.iter_mut().chain(self.shared.as_mut()) {
            all.extend([&mut expert.gate, &mut expert.up, &mut expert.down]);
        }
        all.extend(self.shared_gate.as_mut());
        all
    }
}
