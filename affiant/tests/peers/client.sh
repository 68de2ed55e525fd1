# One job by curl or wget, set up by the environment.
#
# usage: sh client.sh curl-h1|curl-h2|wget BASE FILE NAME hello|files|sse...
set -eu
program=$1 base=$2 file=$3 name=$4
shift 4
stored=$base/files/$name

ask() { # METHOD URL [FILE]: the status to stderr's copy, the body to stdout
  case $program in
    curl-h1 | curl-h2)
      version=--http1.1
      [ "$program" = curl-h1 ] || version=--http2
      curl -sS -N "$version" -X "$1" ${3:+-T "$3"} "$2" -w '%{stderr}%{http_version} %{http_code}\n'
      ;;
    wget)
      wget -S -nv -O - --method="$1" ${3:+--body-file="$3"} "$2" 2>&1 >&3 |
        sed -n 's/^ *HTTP\/\([0-9.]*\) \([0-9]*\).*/\1 \2/p' | tail -1 >&2
      ;;
  esac 3>&1
}

for step in "$@"; do
  case $step in
    hello)
      body=$(ask GET "$base/hello?by=$program" 2>status.$name)
      echo "hello $(cut -d' ' -f2 status.$name) $body"
      echo "version $(cut -d' ' -f1 status.$name)"
      ;;
    files)
      ask PUT "$stored" "$file" 2>status.$name >/dev/null
      echo "put $(cut -d' ' -f2 status.$name)"
      body=$(ask GET "$stored" 2>status.$name | openssl dgst -sha256 -r)
      echo "get $(cut -d' ' -f2 status.$name) ${body%% *}"
      ;;
    sse)
      ask GET "$base/sse?id=$name" 2>/dev/null | while read -r _ number; do
        [ -n "$number" ] || continue
        ask POST "$base/ack?id=$name&n=$number" 2>/dev/null >/dev/null
        echo "event $number"
      done
      ;;
  esac
done
