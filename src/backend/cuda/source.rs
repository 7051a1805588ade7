//! Sources of kernels: files of `cuda/`, with their headers put in place, and how they are compiled.

use super::table::Spec;

/// Headers of `cuda/`.
const HEADERS: &[(&str, &str)] = &[
    ("dev.h", include_str!("../../../cuda/dev.h")),
    ("lib_pack.h", include_str!("../../../cuda/lib_pack.h")),
    ("lib_permute.h", include_str!("../../../cuda/lib_permute.h")),
    ("lib_prefix.h", include_str!("../../../cuda/lib_prefix.h")),
    ("lib_span.h", include_str!("../../../cuda/lib_span.h")),
    ("lib_swiglu.h", include_str!("../../../cuda/lib_swiglu.h")),
    ("lib_team.h", include_str!("../../../cuda/lib_team.h")),
];

/// What every kernel is compiled with: sums and products are rounded one by one unless `fmaf` is written, as on the CPU.
const OPTIONS: &[&str] = &["--std=c++17", "--fmad=false", "-default-device", "--ptxas-options=-v"];

/// Options for an architecture.
pub(super) fn options(sm: u32) -> Vec<String> {
    std::iter::once(format!("--gpu-architecture=sm_{sm}"))
        .chain(OPTIONS.iter().map(|&option| option.to_owned()))
        .collect()
}

/// The whole text of a kernel's file: each header once, where it is asked for first.
pub(super) fn text(spec: &Spec) -> String {
    let mut text = String::new();
    expand(&format!("{}.cu", spec.file), spec.text, &mut Vec::new(), &mut text);
    text
}

fn expand(name: &str, file: &str, seen: &mut Vec<String>, text: &mut String) {
    text.push_str(&format!("#line 1 \"{name}\"\n"));
    for (line, number) in file.lines().zip(2..) {
        let header = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
        let known = header.and_then(|header| HEADERS.iter().find(|(name, _)| *name == header));
        match known {
            Some((header, _)) if seen.iter().any(|seen| seen == header) => text.push('\n'),
            Some((header, content)) => {
                seen.push((*header).to_owned());
                expand(header, content, seen, text);
                text.push_str(&format!("#line {number} \"{name}\"\n"));
            }
            None if line.trim() == "#pragma once" => text.push('\n'),
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_stand_where_they_are_asked_for_once() {
        let mut text = String::new();
        expand("a.cu", "#include \"dev.h\"\n#include \"dev.h\"\nint x;\n", &mut Vec::new(), &mut text);
        assert_eq!(text.matches("typedef unsigned int u32;").count(), 1);
        assert!(text.ends_with("#line 2 \"a.cu\"\n\nint x;\n"), "{}", &text[text.len() - 80..]);
    }
}
