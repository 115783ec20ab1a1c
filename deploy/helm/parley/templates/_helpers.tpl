{{- define "parley.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name }}{{ end }}
{{- end }}

{{- define "parley.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "parley.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "parley.protocol" -}}
{{- $transport := ternary "SSL" "PLAINTEXT" (ne .Values.tls.secretName "") }}
{{- ternary (printf "SASL_%s" $transport) $transport (ne .Values.sasl.secretName "") }}
{{- end }}

{{- define "parley.externalHost" -}}
{{- ternary "${file:/etc/parley/hosts.properties:${pod:name}}" .Values.external.host (gt (len .Values.external.hosts) 0) }}
{{- end }}

{{- define "parley.externalPort" -}}
{{- if eq .Values.external.type "NodePort" }}${pod:ordinal+{{ .Values.external.firstNodePort }}}{{ else }}{{ .Values.ports.external }}{{ end }}
{{- end }}

{{/* What the chart sets itself, as YAML. */}}
{{- define "parley.settings" -}}
{{- $name := include "parley.name" . }}
{{- $protocol := include "parley.protocol" . }}
{{- $inside := printf "INTERNAL://${pod:name}.%s-brokers.%s.svc.%s:%v" $name .Release.Namespace .Values.clusterDomain .Values.ports.internal }}
{{- $listeners := printf "INTERNAL://0.0.0.0:%v" .Values.ports.internal }}
{{- $advertised := $inside }}
{{- $protocols := printf "INTERNAL:%s" $protocol }}
{{- $names := list "internal" }}
{{- if .Values.external.enabled }}
{{- $listeners = printf "%s,EXTERNAL://0.0.0.0:%v" $listeners .Values.ports.external }}
{{- $advertised = printf "%s,EXTERNAL://%s:%s" $advertised (include "parley.externalHost" .) (include "parley.externalPort" .) }}
{{- $protocols = printf "%s,EXTERNAL:%s" $protocols $protocol }}
{{- $names = append $names "external" }}
{{- end }}
{{- $replicas := min .Values.brokers 3 }}
{{- $inSync := ternary 2 1 (eq $replicas 3) }}
{{- if .Values.firstBrokerId }}
broker.id: ${pod:ordinal+{{ .Values.firstBrokerId }}}
{{- else }}
broker.id: ${pod:ordinal}
{{- end }}
{{- with .Values.store.url }}
coordination.url: {{ . | quote }}
{{- end }}
log.dirs: /var/lib/parley/data
listeners: {{ $listeners }}
advertised.listeners: {{ $advertised }}
listener.security.protocol.map: {{ $protocols }}
inter.broker.listener.name: INTERNAL
metrics.listener: 0.0.0.0:{{ .Values.ports.metrics }}
default.replication.factor: {{ $replicas }}
min.insync.replicas: {{ $inSync }}
offsets.topic.replication.factor: {{ $replicas }}
transaction.state.log.replication.factor: {{ $replicas }}
transaction.state.log.min.isr: {{ $inSync }}
share.coordinator.state.topic.replication.factor: {{ $replicas }}
share.coordinator.state.topic.min.isr: {{ $inSync }}
{{- with .Values.tls }}
{{- if .secretName }}
ssl.keystore.type: PEM
ssl.keystore.location: /etc/parley-tls/{{ .keyStore }}
ssl.truststore.type: PEM
ssl.truststore.location: /etc/parley-tls/{{ .trustStore }}
{{- range $names }}
listener.name.{{ . }}.ssl.client.auth: {{ $.Values.tls.clientAuth }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.sasl }}
{{- if .secretName }}
sasl.enabled.mechanisms: {{ .mechanism }}
sasl.mechanism.inter.broker.protocol: {{ .mechanism }}
{{- range $names }}
listener.name.{{ . }}.{{ lower $.Values.sasl.mechanism }}.sasl.jaas.config: ${dir:/etc/parley-sasl:{{ $.Values.sasl.jaas }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* One value of a properties file: whole numbers without an exponent, backslashes doubled. */}}
{{- define "parley.value" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . | toString | replace "\\" "\\\\" | replace "\n" "\\n" }}{{ end }}
{{- end }}

{{- define "parley.properties" -}}
{{- range $key, $value := merge (deepCopy .Values.config) (include "parley.settings" . | fromYaml) }}
{{ $key }}={{ include "parley.value" $value }}
{{- end }}
{{- end }}
