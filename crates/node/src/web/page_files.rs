//! The files of the status page, which are compiled into the binary.

const JAVASCRIPT_CONTENT_TYPE: &str = "text/javascript; charset=utf-8";

/// The path, content type and text of each file.
const PAGE_FILES: &[(&str, &str, &str)] = &[
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/main.js", JAVASCRIPT_CONTENT_TYPE, include_str!("page/main.js")),
    ("/parts.js", JAVASCRIPT_CONTENT_TYPE, include_str!("page/parts.js")),
    ("/map.js", JAVASCRIPT_CONTENT_TYPE, include_str!("page/map.js")),
    ("/format.js", JAVASCRIPT_CONTENT_TYPE, include_str!("page/format.js")),
];

/// Returns the content type and text of the file with this path.
pub(super) fn find_file(path: &str) -> Option<(&'static str, &'static str)> {
    PAGE_FILES.iter().find(|(known, ..)| *known == path).map(|(_, kind, text)| (*kind, *text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_uses_no_external_resources() {
        for (path, _, text) in PAGE_FILES {
            for outside in ["http://", "https://", "url(", "//cdn", "eval(", "innerHTML"] {
                assert!(!text.contains(outside), "{path} has {outside}");
            }
        }
    }

    #[test]
    fn all_referenced_files_exist() {
        for (path, _, text) in PAGE_FILES {
            let quoted = text.split('"').skip(1).step_by(2).chain(text.split('\'').skip(1).step_by(2));
            let named = quoted.filter(|word| word.ends_with(".js") || word.ends_with(".css"));
            for word in named {
                let absolute = format!("/{}", word.trim_start_matches("./").trim_start_matches('/'));
                assert!(find_file(&absolute).is_some(), "{path} names {word}");
            }
        }
    }
}
