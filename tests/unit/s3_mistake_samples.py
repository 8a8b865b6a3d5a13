"""What known mistakes with S3 and with records print; see mistake_samples.py."""

HTTP_ERROR = 'MXNetError: <?xml version="1.0" encoding="UTF-8"?><Error><Code>{}</Code><Message>...</Message></Error>'

S3_SAMPLES = [
    # S3's list of errors; how MXNet 1.7 prints them was seen with a server that answers with each of them.
    ("PermanentRedirect", HTTP_ERROR.format("PermanentRedirect"), "isPermanentRedirected = False"),
    # apache/mxnet#1178
    ("TemporaryRedirect", "<Error><Code>TemporaryRedirect</Code><Message>Please re-send", "TemporaryRedirects: 0"),
    (
        "AuthorizationHeaderMalformed",
        (
            "<Error><Code>AuthorizationHeaderMalformed</Code><Message>The authorization header is malformed; the "
            "region 'us-east-1' is wrong; expecting 'eu-west-1'</Message>"
        ),
        "NotAuthorizationHeaderMalformedAtAll",
    ),
    # apache/mxnet#6329
    (
        "compile with DMLC_USE_S3=1",
        "[19:59:34] src/io.cc:44: Please compile with DMLC_USE_S3=1 to use S3",
        "compiled with DMLC_USE_S3=0",
    ),
    # 1.7: ImageRecordDataset, without staging; test_python_readers.py has the others
    (
        "No such file or directory: 's3://",
        "FileNotFoundError: [Errno 2] No such file or directory: 's3://bucket/train/a.idx'",
        "cp: No such file or directory: 's3://bucket/a'",
    ),
    ("NoSuchBucket", HTTP_ERROR.format("NoSuchBucket"), "NoSuchBuckets"),
    (
        "NoSuchKey",
        "botocore.errorfactory.NoSuchKey: An error occurred (NoSuchKey) when calling the GetObject operation",
        "NoSuchKeyring",
    ),
    # apache/mxnet#4578
    (
        "Cannot find any files that matches the URI",
        (
            "src/io/input_split_base.cc:163: Check failed: files_.size() != 0U (0 vs. 0) Cannot find any files that "
            "matches the URI patternz s3://deep-learn-data/imagenet1k-val.rec"
        ),
        "Cannot find any files",
    ),
    ("ExpiredToken", HTTP_ERROR.format("ExpiredToken"), "ExpiredTokens: 3"),
    ("AccessDenied", HTTP_ERROR.format("AccessDenied"), "AccessDeniedHandler installed"),
    ("InvalidAccessKeyId", HTTP_ERROR.format("InvalidAccessKeyId"), "InvalidAccessKeyIds"),
    ("SignatureDoesNotMatch", HTTP_ERROR.format("SignatureDoesNotMatch"), "SignatureDoesNotMatchers"),
    ("RequestTimeTooSkewed", HTTP_ERROR.format("RequestTimeTooSkewed"), "RequestTimeTooSkewedness"),
    ("SlowDown", HTTP_ERROR.format("SlowDown"), "lr schedule: SlowDown after epoch 3"),
    # 1.7
    (
        "S3_ACCESS_KEY_ID to use S3",
        "MXNetError: Need to set enviroment variable S3_ACCESS_KEY_ID to use S3",
        "S3_ACCESS_KEY_ID is set",
    ),
    # 1.7
    (
        " Could not resolve host: ",
        "Error: Check failed: curl_easy_perform(curl) == CURLE_OK: Could not resolve host: b.s3.amazonaws.com",
        "ping: Could not resolve host: b",
    ),
    # 1.7, while writing
    (
        "Couldn't resolve host name",
        (
            "[22:06:35] src/io/s3_filesys.cc:947: request https://b.s3.amazonaws.com/a.params?uploadsfailed with error "
            "Couldn't resolve host name Progress 0 uploaded  retry=0"
        ),
        "Couldn't resolve host name of the dashboard",
    ),
    # 1.7
    (
        "Failed to connect to ",
        (
            "Error: Check failed: curl_easy_perform(curl) == CURLE_OK: Failed to connect to 127.0.0.1 port 1: "
            "Connection refused"
        ),
        "Failed to connect to the dashboard",
    ),
    # 1.7, a .rec cut short
    (
        "Invalid RecordIO F",
        (
            "MXNetError: Check failed: stream_->Read(BeginPtr(*out_rec) + size, upper_align) == upper_align: "
            "Invalid RecordIO File upper_align=1024"
        ),
        "Invalid Record",
    ),
    # apache/mxnet#10193
    (
        "RecordIOWriter",
        "[12:26:01] src/recordio.cc:117: Check failed: p[0] == RecordIOWriter::kMagic",
        "using RecordIOWriter",
    ),
    # 1.7, a .rec cut short
    (
        "file do not align by 4 bytes",
        "MXNetError: Check failed: files_[i].size % align_bytes == 0: file do not align by 4 bytes",
        "align by 4 bytes",
    ),
]
