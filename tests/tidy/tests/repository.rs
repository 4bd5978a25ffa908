//! The rules of `tidy`, on what is in this repository.

use tidy::File;

fn expect_none(rule: fn(&[File]) -> Vec<String>) {
    let files = tidy::repository_files();
    assert!(files.iter().any(|file| file.path == "Cargo.toml"), "the files were found");
    let complaints = rule(&files);
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn no_crate_uses_one_above_it() {
    expect_none(tidy::check_floors);
}

#[test]
fn every_crate_has_a_floor() {
    expect_none(tidy::check_known);
}

#[test]
fn every_library_has_its_place_in_the_architecture() {
    expect_none(tidy::check_libraries);
}

#[test]
fn the_log_knows_the_crates_of_the_shell() {
    expect_none(tidy::check_messages);
}

#[test]
fn pure_crates_use_no_socket_thread_clock_or_os_randomness() {
    expect_none(tidy::check_pure_sources);
}

#[test]
fn pure_crates_depend_on_no_library_of_the_shell() {
    expect_none(tidy::check_pure_manifests);
}

#[test]
fn no_file_is_over_a_thousand_lines() {
    expect_none(tidy::check_length);
}

#[test]
fn nothing_is_unfinished_or_switched_off() {
    expect_none(tidy::check_unfinished);
}

#[test]
fn unsafe_code_is_forbidden_outside_one_module() {
    expect_none(tidy::check_unsafe);
}

#[test]
fn no_file_names_a_package_registry() {
    expect_none(tidy::check_hosts);
}

#[test]
fn a_kind_of_value_is_named_where_the_list_says() {
    expect_none(tidy::check_kinds);
}

#[test]
fn no_room_of_a_crate_uses_what_leads_back_to_it() {
    expect_none(tidy::check_circles);
}
