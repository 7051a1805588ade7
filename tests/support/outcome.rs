//! What trials return, and how they say what is wrong.

/// Result of a trial: what is wrong, in words.
pub type Outcome = Result<(), String>;

/// Any error in words.
pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// An error, or what is wrong where there is none.
pub fn refused<T>(what: &str, result: lrmoe::Result<T>) -> Result<lrmoe::Error, String> {
    result.err().ok_or_else(|| format!("{what} was accepted"))
}

/// What a trial found is what it should be.
pub fn holds(what: impl std::fmt::Display, condition: bool) -> Outcome {
    if condition { Ok(()) } else { Err(format!("not so: {what}")) }
}
