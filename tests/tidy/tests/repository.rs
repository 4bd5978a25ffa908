//! Applies the rules of `tidy` to this repository.

use tidy::SourceFile;

fn assert_no_violations(rule: fn(&[SourceFile]) -> Vec<String>) {
    let files = tidy::repository_files();
    assert!(files.iter().any(|file| file.path == "Cargo.toml"), "the files were found");
    let violations = rule(&files);
    assert!(violations.is_empty(), "\n{}", violations.join("\n"));
}

#[test]
fn crates_use_only_lower_layers() {
    assert_no_violations(tidy::check_layers);
}

#[test]
fn every_crate_has_a_layer() {
    assert_no_violations(tidy::check_layers_are_complete);
}

#[test]
fn every_library_is_documented() {
    assert_no_violations(tidy::check_libraries_are_documented);
}

#[test]
fn log_filter_lists_impure_crates() {
    assert_no_violations(tidy::check_log_filter);
}

#[test]
fn pure_crates_do_no_io() {
    assert_no_violations(tidy::check_pure_sources);
}

#[test]
fn pure_crates_have_no_impure_dependencies() {
    assert_no_violations(tidy::check_pure_manifests);
}

#[test]
fn files_have_at_most_a_thousand_lines() {
    assert_no_violations(tidy::check_file_length);
}

#[test]
fn no_unfinished_code_or_ignored_tests() {
    assert_no_violations(tidy::check_unfinished);
}

#[test]
fn unsafe_code_is_confined_to_listed_crates() {
    assert_no_violations(tidy::check_unsafe_code);
}

#[test]
fn no_file_names_a_registry_host() {
    assert_no_violations(tidy::check_registry_hosts);
}

#[test]
fn value_types_are_named_only_in_listed_files() {
    assert_no_violations(tidy::check_value_type_files);
}

#[test]
fn modules_have_no_cycles() {
    assert_no_violations(tidy::check_module_cycles);
}

#[test]
fn crates_with_timed_waits_have_some() {
    assert_no_violations(tidy::check_timed_waits_are_needed);
}

#[test]
fn no_parameter_is_a_tuple() {
    assert_no_violations(tidy::check_tuple_parameters);
}

#[test]
fn no_assertion_needs_only_one_of_several_rounds() {
    assert_no_violations(tidy::check_best_of_rounds);
}
