//! The backend over the test driver: whatever fails, and whenever, comes back as an error.

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    Vec::new()
}
