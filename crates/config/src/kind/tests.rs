use super::*;
use crate::choices::AppendFsync;

const MAX: i64 = i64::MAX;
const INVALID_SHUTDOWN_OPTION: &str =
    "argument(s) must be one of the following: default, save, nosave, now, force, safe, failover";

/// Parses each input and compares the formatted value, or the error, with the expected text.
fn check_kind<K: ValueKind>(kind: &K, previous: Option<&K::Value>, table: &[(&str, Result<&str, &str>)]) {
    for (text, expected) in table {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        let parsed = kind.parse(&words, previous);
        let shown = parsed.as_ref().map(|value| kind.format(value)).map_err(String::clone);
        assert_eq!(shown.as_deref().map_err(String::as_str), *expected, "{text}");
        // The value must be the same after a round trip through CONFIG GET's format and through configuration lines.
        if let Ok(value) = parsed {
            assert_eq!(kind.parse(&[kind.format(&value)], previous).as_ref(), Ok(&value), "{text}");
            let mut read = previous.cloned();
            let lines = kind.config_lines(&value);
            for line in lines.iter().filter(|_| !kind.is_cumulative()) {
                read = Some(kind.parse(&resp::split_words(line).unwrap(), read.as_ref()).unwrap());
            }
            assert!(kind.is_cumulative() || lines.is_empty() || read == Some(value), "{text}");
        }
    }
}

#[test]
fn numbers_are_parsed_as_in_redis() {
    check_kind(
        &bounded_number::<usize>(0, 9),
        None,
        &[
            ("7", Ok("7")),
            ("10", Err("argument must be between 0 and 9 inclusive")),
            ("-1", Err("argument must be between 0 and 9 inclusive")),
            ("x", Err("argument couldn't be parsed into an integer")),
            ("1 2", Err("wrong number of arguments")),
        ],
    );
    check_kind(
        &clamped_number(1, 500),
        None,
        &[
            ("10000", Ok("500")),
            ("0", Ok("1")),
            ("-1", Err("argument must be between 0 and 2147483647 inclusive")),
        ],
    );
    check_kind(
        &file_mode(),
        None,
        &[("755", Ok("755")), ("8", Err("argument couldn't be parsed into an integer")), ("0", Ok("0"))],
    );
    check_kind(&bounded_number::<i32>(i64::from(i32::MIN), i64::from(i32::MAX)), None, &[("-2", Ok("-2"))]);
    check_kind(
        &optional_port(),
        None,
        &[("0", Ok("0")), ("65536", Err("argument must be between 0 and 65535 inclusive"))],
    );
    assert_eq!(optional_port().parse(&["0".to_owned()], None), Ok(None));
}

#[test]
fn sizes_are_parsed_as_in_redis() {
    check_kind(
        &byte_count::<u64>(0, MAX),
        None,
        &[
            ("2mb", Ok("2097152")),
            ("2m", Ok("2000000")),
            ("2x", Err("argument must be a memory value")),
            ("-1", Err("argument must be a memory value")),
            ("", Ok("0")),
        ],
    );
    check_kind(
        &byte_count::<u64>(1, MAX),
        None,
        &[("", Err("argument must be between 1 and 9223372036854775807 inclusive"))],
    );
    check_kind(&byte_count::<i64>(-1, MAX), None, &[("-1", Ok("-1")), ("2mb", Ok("2097152"))]);
    check_kind(
        &min_bytes(16_384),
        None,
        &[
            ("1", Ok("16384")),
            ("1mb", Ok("1048576")),
            ("0", Err("argument must be between 1 and 9223372036854775807 inclusive")),
        ],
    );
    check_kind(
        &memory_size(),
        None,
        &[
            ("5%", Ok("5%")),
            ("1k", Ok("1000")),
            ("", Ok("0")),
            ("101%", Err("percentage argument must be less or equal to 100")),
            ("300%", Err("percentage argument must be less or equal to 100")),
            ("-1%", Err("argument must be a memory or percent value")),
            ("x", Err("argument must be a memory or percent value")),
        ],
    );
    assert_eq!(MemorySize::Percent(5).to_bytes(1000), 50);
}

#[test]
fn durations_use_their_unit() {
    let parse = |kind: number::DurationKind, text: &str| kind.parse(&[text.to_owned()], None);
    assert_eq!(parse(seconds(0, 60), "60"), Ok(std::time::Duration::from_secs(60)));
    assert_eq!(parse(millis(0, MAX), "1500"), Ok(std::time::Duration::from_millis(1500)));
    check_kind(
        &millis(0, MAX),
        None,
        &[("1500", Ok("1500")), ("9223372036854775807", Ok("9223372036854775807"))],
    );
    check_kind(&seconds(0, 60), None, &[("61", Err("argument must be between 0 and 60 inclusive"))]);
}

#[test]
fn words_are_parsed_as_in_redis() {
    check_kind(&yes_no(), None, &[("YES", Ok("yes")), ("1", Err("argument must be 'yes' or 'no'"))]);
    check_kind(
        &enum_word::<AppendFsync>(),
        None,
        &[
            ("ALWAYS", Ok("always")),
            ("c", Err("argument(s) must be one of the following: everysec, always, no")),
        ],
    );
    check_kind(
        &fixed_word(&["a", "b"]),
        None,
        &[("B", Ok("b")), ("c", Err("argument(s) must be one of the following: a, b"))],
    );
    check_kind(
        &event_letters(),
        None,
        &[
            ("", Ok("")),
            ("KEA", Ok("AKE")),
            ("Exl", Ok("lxE")),
            ("mg$lshzxetdKE", Ok("AKEm")),
            ("AmnE", Ok("AnEm")),
            ("Kq", Err("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")),
        ],
    );
    check_kind(&optional_text(), None, &[("", Ok("")), ("a", Ok("a"))]);
    let dump = [
        ("a/b", Err("dbfilename can't be a path, just a filename")),
        ("", Err("dbfilename can't be empty")),
        ("dump.rdb", Ok("dump.rdb")),
    ];
    check_kind(&dump_file_name(), None, &dump);
    check_kind(
        &append_directory_name(),
        None,
        &[("/b", Err("appenddirname can't be a path, just a dirname"))],
    );
    check_kind(&path("dir can't be empty"), None, &[("", Err("dir can't be empty")), ("/b", Ok("/b"))]);
}

#[test]
fn process_title_template_is_validated() {
    let parse = |template: &str| process_title().parse(&[template.to_owned()], None);
    for good in ["plain", "{{title}}", "{title} {port}", "x{title}", "{{", "{{}", "}}", "{listen-addr}"] {
        assert_eq!(parse(good).as_deref(), Ok(good));
    }
    for bad in ["", " ", "{title}", "{nosuch} x", "{title", "{title} {", "{}", "{server-mode}", "{ title} x"]
    {
        assert!(parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn invalid_address_error_is_specific() {
    check_kind(
        &announced_address(),
        None,
        &[
            ("1.2.3", Err("argument must be an IP address")),
            (&"1".repeat(46), Err("cluster-announce-ip is too long")),
            ("2001:db8::1", Ok("2001:db8::1")),
            ("127.0.0.1", Ok("127.0.0.1")),
            ("", Ok("")),
        ],
    );
    let with_a_blank = announced_address().parse(&["a b".to_owned()], None);
    assert_eq!(with_a_blank, Err("cluster-announce-ip contains invalid character".to_owned()));
    check_kind(
        &ipv4(),
        None,
        &[("::1", Err("Invalid IPv4 address")), ("127.0.0.1", Ok("127.0.0.1")), ("", Ok(""))],
    );
    check_kind(
        &ipv6(),
        None,
        &[("127.0.0.1", Err("Invalid IPv6 address")), ("::1", Ok("::1")), ("", Ok(""))],
    );
}

#[test]
fn lists_are_parsed_as_in_redis() {
    check_kind(&word_list(), None, &[("* -::*", Ok("* -::*")), ("", Ok(""))]);
    check_kind(
        &shutdown_options(),
        None,
        &[
            ("save NOW", Ok("save now")),
            ("save nosave", Err("shutdown options SAVE and NOSAVE can't be used simultaneously")),
            ("force SAVE default", Ok("save force")),
            ("default", Ok("default")),
            ("now  safe", Err(INVALID_SHUTDOWN_OPTION)),
            ("", Err(INVALID_SHUTDOWN_OPTION)),
        ],
    );
    check_kind(
        &percentile_list(),
        None,
        &[
            ("50 99.9 1e1", Ok("50 99.9 10")),
            ("", Ok("")),
            ("50  99", Err("Invalid latency-tracking-info-percentiles parameters")),
            ("nan", Err("Invalid latency-tracking-info-percentiles parameters")),
            ("101", Err("latency-tracking-info-percentiles parameters should sit between [0.0,100.0]")),
        ],
    );
}

#[test]
fn fixed_length_lists_are_parsed_as_in_redis() {
    check_kind(
        &oom_adjustments(),
        None,
        &[("0 +200 800", Ok("0 200 800")), ("1 2", Err("wrong number of arguments"))],
    );
    check_kind(
        &optional_master(),
        None,
        &[
            ("db 7000", Ok("db 7000")),
            ("no ONE", Ok("")),
            ("", Ok("")),
            ("db x", Err("Invalid primary port")),
            ("db", Err("wrong number of arguments")),
        ],
    );
    check_kind(
        &save_points(),
        None,
        &[
            ("900 1 60 10", Ok("900 1 60 10")),
            ("", Ok("")),
            ("900", Err("Invalid save parameters")),
            ("0 1", Err("Invalid save parameters")),
        ],
    );
    let before = OutputLimits {
        pubsub: OutputLimit {
            hard_limit: 9,
            soft_limit: 8,
            soft_duration: std::time::Duration::from_secs(7),
        },
        ..OutputLimits::default()
    };
    check_kind(
        &output_limits(),
        Some(&before),
        &[
            ("replica 1mb 2 3", Ok("normal 0 0 0 slave 1048576 2 3 pubsub 9 8 7")),
            ("nobody 1 2 3", Err("Invalid client class specified in buffer limit configuration.")),
            ("", Ok("normal 0 0 0 slave 0 0 0 pubsub 9 8 7")),
            ("normal 1 2", Err("Wrong number of arguments in buffer limit configuration.")),
        ],
    );
}
