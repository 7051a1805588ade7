//! Every backend, or why it is missing: `cargo run --release --example devices`.
#![allow(clippy::print_stdout, reason = "an example prints what it finds")]

fn main() {
    for device in lrmoe::backend::devices() {
        match device.caps {
            Ok(caps) => {
                let storage: Vec<String> = caps.storage.iter().map(ToString::to_string).collect();
                println!("{:<5} {}; stores {}", device.name, caps.device, storage.join(", "));
            }
            Err(reason) => println!("{:<5} missing: {reason}", device.name),
        }
    }
}
