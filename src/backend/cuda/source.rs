//! Sources of kernels: files of `cuda/`, with their headers put in place, and how they are compiled.

macro_rules! headers {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("../../../cuda/", $name)))),*] };
}

/// Headers of `cuda/`.
const HEADERS: &[(&str, &str)] = headers![
    "dev.h",
    "lib_circle.h",
    "lib_demand.h",
    "lib_digits.h",
    "lib_faults.h",
    "lib_gemm_load.h",
    "lib_gemm_mma.h",
    "lib_gemm_rows.h",
    "lib_gemm_simt.h",
    "lib_gemm_swiglu.h",
    "lib_gemm_tile.h",
    "lib_gemm_wgrad.h",
    "lib_list.h",
    "lib_math.h",
    "lib_pack.h",
    "lib_permute.h",
    "lib_philox.h",
    "lib_place.h",
    "lib_plan.h",
    "lib_prefix.h",
    "lib_ranges.h",
    "lib_segment.h",
    "lib_size.h",
    "lib_softmax.h",
    "lib_span.h",
    "lib_stats.h",
    "lib_swiglu.h",
    "lib_tally.h",
    "lib_team.h",
    "lib_ties.h",
    "lib_warp.h",
    "lib_wide.h",
];

/// What every kernel is compiled with: sums and products are rounded one by one unless `fmaf` is written, as on the CPU.
const OPTIONS: &[&str] = &["--std=c++17", "--fmad=false", "-default-device", "--ptxas-options=-v"];

/// Options for an architecture.
pub(super) fn options(sm: u32) -> Vec<String> {
    std::iter::once(format!("--gpu-architecture=sm_{sm}"))
        .chain(OPTIONS.iter().map(|&option| option.to_owned()))
        .collect()
}

/// The whole text of a file of kernels: each header once, where it is asked for first.
pub(super) fn text(file: &str, content: &str) -> String {
    let mut text = String::new();
    expand(&format!("{file}.cu"), content, &mut Vec::new(), &mut text);
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
